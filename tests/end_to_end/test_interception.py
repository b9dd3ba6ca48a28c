"""Idioms of scripts written for CUDA, without CUDA: each records the ops that it should."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neusight
from neusight.recording.recording import Mark, OpCall
from recorded_programs import entries_of


def ops(forecast: neusight.Forecast, phase: str = "") -> Counter[str]:
    """How often each op was recorded (in that phase)."""
    return Counter(
        entry.signature.op.removeprefix("aten::")
        for step in forecast.recording.steps
        for entry in step.entries
        if isinstance(entry, OpCall) and phase in ("", entry.phase)
        for _ in range(step.count)
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10)).cuda()


def batch(size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 64, device="cuda"), torch.randint(0, 10, (size,), device="cuda")


def loss_of(model: nn.Module) -> torch.Tensor:
    inputs, targets = batch()
    return F.cross_entropy(model(inputs), targets)


# -- devices and moving ----------------------------------------------------------------------------


def test_device_strings_integers_and_defaults_all_mean_the_target() -> None:
    with neusight.forecast_on("H100"):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tensors = [
            torch.ones(3).to(0),
            torch.ones(3, device=0),
            torch.ones(3).cuda(),
            torch.ones(3, device="cuda:0"),
            torch.ones(3).to(device, non_blocking=True),
            torch.cuda.FloatTensor(3),  # type: ignore[attr-defined]
            nn.Linear(2, 2).to("cuda:0").weight,
        ]
        with torch.device("cuda"):
            tensors.append(torch.ones(3))
        torch.set_default_device("cuda")
        try:
            tensors.append(torch.ones(3))
        finally:
            torch.set_default_device(None)
        found = {(str(tensor.device), tensor.is_cuda) for tensor in tensors}

    assert found == {("cuda:0", True)}


def test_an_optimizer_built_before_the_model_moves_trains_the_moved_model() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.to("cuda:0")
        loss_of(model).backward()
        optimizer.step()
        same = model.weight is optimizer.param_groups[0]["params"][0]
        has_gradient = model.weight.grad is not None

    assert (same, has_gradient) == (True, True)
    assert ops(forecast, "optimizer")["_foreach_add_"] == 1


# -- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_data_loader_feeds_pinned_batches(num_workers: int) -> None:
    with neusight.forecast_on("H100") as forecast:
        data = TensorDataset(torch.randn(64, 64), torch.randint(0, 10, (64,)))
        loader = DataLoader(data, batch_size=16, num_workers=num_workers, pin_memory=True)
        shapes = [x.cuda(non_blocking=True).shape for x, _ in loader]

    assert shapes == [(16, 64)] * 4
    assert ops(forecast)["_to_copy"] == 4


def test_what_is_copied_back_has_the_right_kind() -> None:
    with neusight.forecast_on("H100"):
        inputs, targets = batch()
        array = (inputs + 1).cpu().numpy()
        number = inputs.sum().item()
        index: Any = targets.argmax().tolist()
        text = f"{inputs.mean():.3f}"
        length = len(targets.tolist())
        shown = str(torch.ones(3, device="cuda"))

    assert array.shape == (32, 64)
    assert isinstance(number, float)
    assert isinstance(index, int)
    assert float(text) > 0
    assert length == 32
    assert "cuda:0" in shown


def test_a_gpu_tensor_does_not_become_an_array_by_itself() -> None:
    with neusight.forecast_on("H100"):
        tensor = torch.ones(3, device="cuda")
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            tensor.numpy()


# -- training --------------------------------------------------------------------------------------


def test_mixed_precision_with_a_scaler_unscales_and_steps() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_of(model)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scale, enabled = scaler.get_scale(), scaler.is_enabled()

    assert (scale, enabled, loss.dtype) == (65536.0, True, torch.float32)
    counts = ops(forecast)
    assert counts["_amp_foreach_non_finite_check_and_unscale_"] == 2
    assert counts["_amp_update_scale_"] == 2
    assert counts["_foreach_norm"] == 2
    halves = [
        entry.signature.op
        for entry in entries_of(forecast, OpCall) if entry.signature.op == "aten::addmm"
        and entry.signature.output_tensors[0].dtype == "float16"
    ]  # fmt: skip
    assert len(halves) == 4


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.AdamW(p, fused=True), "_fused_adamw_"),
        (lambda p: torch.optim.AdamW(p), "_foreach_addcdiv_"),
        (lambda p: torch.optim.Adam(p, capturable=True), "_foreach_addcdiv_"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "_foreach_add_"),
        (lambda p: torch.optim.Adagrad(p), "_foreach_addcmul_"),
        (lambda p: torch.optim.RMSprop(p), "_foreach_addcdiv_"),
    ],
)
def test_optimizers_take_their_fast_paths(make: Any, expected: str) -> None:
    with neusight.forecast_on("H100") as forecast:
        model = mlp()
        optimizer = make(model.parameters())
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()

    assert ops(forecast, "optimizer")[expected] >= 1


def test_gradients_of_gradients_and_of_samples() -> None:
    with neusight.forecast_on("H100"):
        x = torch.randn(3, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        gradient.sum().backward()
        model = mlp().eval()
        parameters = dict(model.named_parameters())

        def loss(p: Any, one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            out = torch.func.functional_call(model, p, one[None])
            return F.cross_entropy(out, target[None])

        per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, *batch())

    assert x.grad is not None and tuple(x.grad.shape) == (3,)
    assert tuple(per_sample["0.weight"].shape) == (32, 128, 64)


# -- networks --------------------------------------------------------------------------------------


def test_convolutions_keep_channels_last_and_use_cudnn_batch_norm() -> None:
    with neusight.forecast_on("H100") as forecast:
        model: Any = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        ).cuda()  # fmt: skip
        model.to(memory_format=torch.channels_last)
        images = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
        out = model[0](images)
        model(images).sum().backward()

    assert out.is_contiguous(memory_format=torch.channels_last)
    counts = ops(forecast)
    assert counts["cudnn_batch_norm"] == counts["cudnn_batch_norm_backward"] == 1
    assert counts["convolution_backward"] == 2


# -- torch.cuda ------------------------------------------------------------------------------------


def test_a_graph_runs_on_the_stream_that_replays_it() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(64, 64, device="cuda")
        capturing, beside = torch.cuda.Stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=capturing):
            y = x @ x
            beside.wait_stream(capturing)
            with torch.cuda.stream(beside):
                z = x + 1
            capturing.wait_stream(beside)
            y + z
        for _ in range(2):
            graph.replay()

    product, aside, total = forecast.timeline.kernels[-3:]
    assert product.stream == total.stream == 0
    assert aside.stream == beside.stream_id
    assert product.end_ns <= aside.start_ns < aside.end_ns <= total.start_ns


def test_annotations_of_the_script_and_of_torch_are_kept() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.profiler.record_function("my part"):
            torch.cuda.nvtx.range_push("range")
            loss_of(model).backward()
            torch.cuda.nvtx.range_pop()
        optimizer.step()

    marks = [
        (entry.kind, entry.name)
        for entry in entries_of(forecast, Mark)
        if entry.kind.startswith("annotation")
    ]
    assert marks == [
        ("annotation_begin", "my part"), ("annotation_begin", "range"),
        ("annotation_end", "range"), ("annotation_end", "my part"),
        ("annotation_begin", "Optimizer.step#SGD.step"),
        ("annotation_end", "Optimizer.step#SGD.step"),
    ]  # fmt: skip


def test_threads_of_the_script_record() -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            loss_of(mlp()).backward()

    with neusight.forecast_on("H100") as forecast:
        threads = [Worker(), threading.Thread(target=lambda: torch.ones(3, device="cuda").sin())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    counts = ops(forecast)
    assert counts["addmm"] == 2
    assert counts["sin"] == 1
    assert counts["nll_loss_backward"] == 1


def test_a_mixture_of_experts_model_trains() -> None:
    transformers = pytest.importorskip("transformers")
    with neusight.forecast_on("H100") as forecast:
        config = transformers.MixtralConfig(
            num_hidden_layers=1, hidden_size=64, intermediate_size=128, vocab_size=1000,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
        )  # fmt: skip
        model = transformers.MixtralForCausalLM(config).cuda().to(torch.bfloat16)
        tokens = torch.randint(0, 1000, (1, 128), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()

    assert sum(ops(forecast, "backward").values()) > 0
    assert forecast.unmapped == []

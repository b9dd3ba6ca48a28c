"""nn.Module and optimizers work on tensors without data."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.report.html import html_report
from neusight.predictors.kernel import CollectiveSize
from neusight.recording.tensor import ForecastTensor


def nested(depth: int) -> nn.Module:
    net: nn.Module = nn.Linear(8, 8)
    for _ in range(depth):
        net = nn.Sequential(net)
    return net


def test_two_hundred_nested_modules_are_recorded_shown_and_saved(tmp_path: Path) -> None:
    with neusight.forecast_on("H100") as forecast:
        net = nested(200).cuda()
        for _ in range(3):
            net(torch.ones(4, 8, device="cuda")).sum().backward()

    forecast.save(tmp_path / "saved.json")
    forecast.export_chrome_trace(tmp_path / "trace.json")
    again = neusight.Forecast.load(tmp_path / "saved.json")
    assert again.summary() == forecast.summary()
    assert forecast.key_averages().table()
    assert html_report([forecast])
    deepest = max(span.call.module.count(".") for span in forecast.timeline.kernels)
    assert deepest == 200


def test_recursion_goes_as_deep_as_before_afterwards() -> None:
    before = sys.getrecursionlimit()

    with neusight.forecast_on("H100") as forecast:
        inside = sys.getrecursionlimit()
        torch.ones(1, device="cuda")
    with neusight.forecast_on("H100"):
        sys.setrecursionlimit(before + 7)  # the program's own choice stays
        torch.ones(1, device="cuda")
    own = sys.getrecursionlimit()
    sys.setrecursionlimit(before)

    assert (inside, own) == (2 * before, before + 7)
    assert not forecast.failure


def test_modules_too_deep_for_python_fail_with_a_sentence() -> None:
    with (
        pytest.raises(RecursionError),
        neusight.forecast_on("H100") as forecast,
    ):
        nested(2000).cuda()

    assert "sys.setrecursionlimit allows more" in forecast.failure


def test_a_large_model_takes_no_memory_and_little_time() -> None:
    start = time.process_time()  # not the time that others take on a loaded machine

    with neusight.forecast_on("H100") as forecast:
        model = nn.ModuleList([nn.Linear(16384, 16384) for _ in range(20)]).cuda()
        x = torch.ones(1, 16384, device="cuda", requires_grad=True)
        for layer in model:
            x = layer(x)
        x.sum().backward()

    assert forecast.peak_memory_bytes > 2 * 20 * 4 * 16384**2  # parameters and gradients: 43 GB
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.cuda(), lambda m: m.to("cuda"), lambda m: m.to("cuda", torch.float16),
        lambda m: m.half().cuda(), lambda m: m.cuda().bfloat16(), lambda m: m.to(0).double(),
        lambda m: m.cuda().cpu().cuda(), lambda m: m.to_empty(device="cuda"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("made_inside", [True, False])
def test_modules_move_and_convert_and_keep_their_parameters(move: Any, made_inside: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    before = make()
    dtypes = {str(torch.float16), str(torch.bfloat16), str(torch.float64), str(torch.float32)}
    with neusight.forecast_on("H100"):
        model = make() if made_inside else before
        ids = [id(p) for p in model.parameters()]
        move(model)
        facts = {
            (t.device.type, isinstance(t, ForecastTensor)) for t in model.state_dict().values()
        }
        same = [id(p) for p in model.parameters()] == ids
        dtype = str(next(model.parameters()).dtype)
        data = torch.ones(3, 4, device="cuda", dtype=next(model.parameters()).dtype)
        model(data).sum().backward()
        gradients = {p.grad.device.type for p in model.parameters() if p.grad is not None}

    assert facts == {("cuda", True)}
    assert same
    assert dtype in dtypes
    assert gradients == {"cuda"}
    assert {p.device.type for p in before.parameters()} == {"cpu"}


def test_modules_come_back_to_the_cpu_and_compute_there() -> None:
    with neusight.forecast_on("H100"):
        model = nn.Linear(100, 10).cuda()
        model(torch.ones(2, 100, device="cuda")).sum().backward()
        model.cpu()
        out = model(torch.ones(2, 100))
        finite = bool(out.isfinite().all())

    assert (out.device.type, tuple(out.shape), finite) == ("cpu", (2, 10), True)


def test_meta_models_become_real_ones() -> None:
    with neusight.forecast_on("H100"):
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        model.to_empty(device="cuda")
        model.reset_parameters()
        with torch.device("cuda"):
            direct = nn.Linear(8, 8)
        devices = {p.device.type for p in (*model.parameters(), *direct.parameters())}

    assert devices == {"cuda"}


def test_state_dicts_load_and_assign() -> None:
    with neusight.forecast_on("H100"):
        source, target = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
        target.load_state_dict(source.state_dict())
        target.load_state_dict(source.state_dict(), assign=True)
        on_cpu = nn.Linear(8, 8)
        on_cpu.load_state_dict({name: t.cpu() for name, t in source.state_dict().items()})
        with pytest.raises(RuntimeError, match="size mismatch for weight"):
            nn.Linear(9, 8).cuda().load_state_dict(source.state_dict())
        devices = (target.weight.device.type, on_cpu.weight.device.type)

    assert devices == ("cuda", "cpu")


def test_weight_norm_tied_weights_and_frozen_parts_train() -> None:
    with neusight.forecast_on("H100"):
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
        tied = nn.Linear(8, 8).cuda()
        tied.weight = normed.parametrizations.weight.original1
        frozen = nn.Linear(8, 8).cuda().requires_grad_(False)
        optimizer = torch.optim.AdamW([*normed.parameters(), tied.bias])
        frozen(tied(normed(torch.ones(2, 8, device="cuda")))).sum().backward()
        optimizer.step()

    assert frozen.weight.grad is None


def test_an_averaged_model_and_a_schedule_follow() -> None:
    with neusight.forecast_on("H100"):
        model = nn.Linear(8, 8).cuda()
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        for _ in range(2):
            loss = model(torch.ones(2, 8, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
        plateau.step(loss.item())
        rate = optimizer.param_groups[0]["lr"]

    assert rate == pytest.approx(0.0)


@pytest.mark.filterwarnings("ignore:It seems like you did not set/select the default device")
def test_split_parameters_made_without_memory_become_real_ones() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with neusight.forecast_on("H100") as forecast:
            with torch.device("meta"):
                model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
            fully_shard(model, mesh=init_device_mesh("cuda", (4,)))
            model.to_empty(device="cuda")
            for _ in range(3):
                model(torch.ones(8, 256, device="cuda")).sum().backward()
            weight: Any = model[0].weight
            kind, device, local = type(weight), weight.device.type, weight.to_local().shape
    finally:
        torch.distributed.destroy_process_group()

    assert issubclass(kind, DTensor)
    assert device == "cuda"
    assert local == (256, 256)
    assert forecast.peak_memory_bytes > 4 * 2 * 256 * 1024 / 4


def test_a_default_device_holds_for_tensors_made_of_values() -> None:
    with neusight.forecast_on("H100"), torch.device("cuda"):
        scale = nn.Parameter(torch.tensor(0.5))

    with torch.device("meta"):
        after = torch.tensor(0.5)

    assert (scale.device.type, after.device.type) == ("cuda", "meta")


def test_lazy_modules_are_made_where_they_were_moved_to() -> None:
    with neusight.forecast_on("H100") as forecast:
        convolution, norm = nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d()
        model = nn.Sequential(convolution, norm, nn.Flatten(), nn.LazyLinear(5)).cuda().bfloat16()
        data = torch.rand(2, 3, 8, 8, device="cuda", dtype=torch.bfloat16)
        model(data).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        kinds = {(p.device.type, p.dtype) for p in model.parameters()}
        shapes = [tuple(p.shape) for p in model.parameters()]
        on_the_cpu = nn.LazyLinear(3)(torch.rand(2, 7))

    assert kinds == {("cuda", torch.bfloat16)}
    assert shapes == [(8, 3, 3, 3), (8,), (8,), (8,), (5, 288), (5,)]
    assert on_the_cpu.device.type == "cpu"
    assert forecast.unmapped == []


def test_modules_and_tensors_move_to_the_device_meta() -> None:
    before = nn.Linear(4, 4)
    weight = before.weight
    with neusight.forecast_on("H100"):
        moved = nn.Linear(4, 4).cuda().to("meta")
        tensor = torch.ones(3, 4, device="cuda").to("meta", torch.bfloat16)
        before.cuda().to("meta")
        devices = [p.device.type for m in (moved, before, nn.Linear(4, 4).to("meta"))
                   for p in m.parameters()]  # fmt: skip
        again = moved.to_empty(device="cuda")
        again.load_state_dict(nn.Linear(4, 4).cuda().state_dict(), assign=True)
        out = again(torch.ones(3, 4, device="cuda"))

    assert devices == ["meta"] * 6
    assert (tensor.device.type, tensor.dtype, tuple(tensor.shape)) == (
        "meta", torch.bfloat16, (3, 4),
    )  # fmt: skip
    assert out.device.type == "cuda"
    assert before.weight is weight
    assert torch.equal(before(torch.ones(4)), before(torch.ones(4)))


def test_nothing_is_copied_out_of_the_device_meta() -> None:
    with neusight.forecast_on("H100"):
        on_meta, on_gpu = torch.ones(3, device="meta"), torch.ones(3, device="cuda")
        assert on_meta.copy_(on_gpu) is on_meta
        for copy in (lambda: on_meta.to("cuda"), lambda: on_gpu.copy_(on_meta)):
            with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
                copy()
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            on_gpu.data = on_meta


def test_a_tensor_of_the_cpu_takes_data_on_the_gpu_and_comes_back() -> None:
    """FSDP1 moves buffers so (`buffer.data = buffer.to(device)`)."""
    before = torch.arange(4.0)
    with neusight.forecast_on("H100") as forecast:
        inside = torch.ones(4)
        for tensor in (before, inside):
            tensor.data = tensor.to("cuda")
            tensor.data = tensor.to("cuda", torch.bfloat16)
            assert tensor.device.type == "cuda"
            assert (tensor + 1).dtype == torch.bfloat16

    assert forecast.recording.num_ops
    assert torch.equal(before, torch.arange(4.0))


@pytest.mark.parametrize("settings", [{}, {"use_orig_params": True, "sync_module_states": True}])
def test_fsdp1_shards_a_module_with_buffers(settings: dict[str, Any]) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with neusight.forecast_on("H100", world_size=4) as forecast:
        torch.distributed.init_process_group("nccl")
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        shards: Any = FullyShardedDataParallel(net, device_id=torch.device("cuda", 0), **settings)
        shards(torch.ones(4, 8, device="cuda")).sum().backward()
        torch.distributed.destroy_process_group()

    sizes = [kernel.size for kernel, _ in forecast.kernels if kernel.name == "all_gather"]
    assert [size.num_bytes for size in sizes if isinstance(size, CollectiveSize)] == [
        4 * (8 * 8 + 8 + 8 + 8)
    ]

"""Whole models: the op stream of a steady training step, against golden lists.

The lists are small enough to review; NEUSIGHT_UPDATE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.recording.recording import OpCall
from places import GOLDEN_FILES, ROOT

GOLDEN = GOLDEN_FILES
Loss = Callable[[], torch.Tensor]


def example(name: str) -> Any:
    """A module of the examples folder."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "examples"))


def gpt2() -> tuple[nn.Module, Loss]:
    script = example("train_gpt2")
    model = script.GPT2(script.Config(num_layers=2, num_heads=4, width=256, vocabulary=1000)).cuda()
    tokens = torch.randint(1000, (2, 128))

    def loss() -> torch.Tensor:
        data = tokens.cuda()
        return F.cross_entropy(model(data).view(-1, 1000), data.view(-1))

    return model, loss


def resnet50() -> tuple[nn.Module, Loss]:
    model = example("train_resnet50").ResNet50().cuda()
    images, labels = torch.randn(2, 3, 224, 224), torch.randint(1000, (2,))
    return model, lambda: F.cross_entropy(model(images.cuda()), labels.cuda())


def lstm() -> tuple[nn.Module, Loss]:
    model = nn.LSTM(64, 128, 2, batch_first=True).cuda()
    return model, lambda: model(torch.randn(4, 16, 64, device="cuda"))[0].square().mean()


def hugging_face(kind: str) -> tuple[nn.Module, Loss]:
    transformers = pytest.importorskip("transformers")
    if kind == "bert":
        config = transformers.BertConfig(num_hidden_layers=2, vocab_size=1000)
        model = transformers.BertForMaskedLM(config)
    elif kind == "gpt2_hf":
        config = transformers.GPT2Config(n_layer=2, vocab_size=1000, use_cache=False)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    model = model.cuda()
    tokens = torch.randint(1000, (2, 128))
    return model, lambda: model(input_ids=(data := tokens.cuda()), labels=data).loss


MODELS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "gpt2": gpt2,
    "resnet50": resnet50,
    "lstm": lstm,
    "bert": lambda: hugging_face("bert"),
    "gpt2_hf": lambda: hugging_face("gpt2_hf"),
    "llama": lambda: hugging_face("llama"),
}
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@cache
def forecast_training(name: str, dtype: str, gpu: str = "H100") -> neusight.Forecast:
    """Several tests look at one forecast."""
    autocast = DTYPES[dtype]
    with warnings.catch_warnings(), neusight.forecast_on(gpu) as forecast:
        warnings.simplefilter("ignore")  # of transformers
        model, loss_of = MODELS[name]()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=autocast is torch.float16)
        for _ in range(4):
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                loss = loss_of()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            loss.item()
    return forecast


def op_list(forecast: neusight.Forecast) -> str:
    """Phase, op and count of the steady step, a line each."""
    step = [step for step in forecast.recording.steps if step.kind == "train"][-1]
    counts = Counter(
        (entry.phase, entry.signature.op) for entry in step.entries if isinstance(entry, OpCall)
    )
    return "".join(
        f"{phase:<10} {count:>5} {op}\n" for (phase, op), count in sorted(counts.items())
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_without_unmapped_ops(name: str, dtype: str) -> None:
    forecast = forecast_training(name, dtype)

    assert forecast.unmapped == []
    assert [step.count for step in forecast.recording.steps if step.kind == "train"][-1] >= 2
    assert 0 < forecast.step_latency_us.median < 1e6
    assert forecast.coverage["fallback"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_ops_of_a_training_step_are_the_golden_ones(name: str) -> None:
    path = GOLDEN / f"{name}_bf16.txt"

    ops = op_list(forecast_training(name, "bf16"))

    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(ops)
    assert ops == path.read_text()


def small_gpt2() -> tuple[nn.Module, Loss]:
    script = example("train_gpt2")
    model = script.GPT2(script.Config(num_layers=1, num_heads=4, width=256, vocabulary=1000)).cuda()
    tokens = torch.randint(1000, (2, 128))
    return model, lambda: F.cross_entropy(
        model(tokens.cuda()).view(-1, 1000), tokens.cuda().view(-1)
    )


def small_convolutional_network() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Dropout(), nn.Flatten(),
        nn.Linear(64 * 16 * 16, 10),
    ).cuda()  # fmt: skip
    images, labels = torch.randn(8, 16, 32, 32), torch.randint(10, (8,))
    return model, lambda: F.cross_entropy(model(images.cuda()), labels.cuda())


def kernel_list(forecast: neusight.Forecast) -> str:
    """The figures of the steady step, and its kernels: equal ones of an op in a line."""
    timeline = forecast.timeline
    step = [step for step in timeline.steps if step.replay.step.kind == "train"][-1]
    spans = timeline.kernels[step.first_kernel : step.last_kernel]
    counts = Counter(
        (
            span.call.signature.op.removeprefix("aten::"),
            f"{span.kernel.kernel_class.value} {span.kernel.name}",
            span.kernel.flops,
            span.kernel.bytes_read,
            span.kernel.bytes_written,
            span.duration_ns,
        )
        for span in spans
    )
    lines = [
        f"step {step.latency_ns} ns, host {step.host_ns} ns, GPU busy {step.gpu_busy_ns} ns\n",
        f"peak {forecast.peak_memory_bytes} bytes allocated, "
        f"{forecast.peak_reserved_bytes} reserved\n",
        f"{'op':<42}{'kernel':<44}{'count':>6}{'FLOPs':>12}{'read':>10}{'written':>10}{'ns':>8}\n",
    ]
    for (op, kernel, flops, read, written, time_ns), count in sorted(counts.items()):
        lines.append(
            f"{op:<42}{kernel:<44}{count:>6}{flops:>12.0f}{read:>10.0f}{written:>10.0f}{time_ns:>8}\n"
        )
    return "".join(lines)


@pytest.mark.parametrize(
    ("name", "make"),
    [("gpt2_kernels", small_gpt2), ("convolution_kernels", small_convolutional_network)],
)
def test_the_kernels_of_a_training_step_are_the_golden_ones(
    name: str, make: Callable[[], tuple[nn.Module, Loss]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, name, make)
    path = GOLDEN / f"{name}_h100.txt"

    kernels = kernel_list(forecast_training(name, "bf16"))

    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        path.write_text(kernels)
    assert kernels == path.read_text()

"""Other batches in a recording, compared with programs that run with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.advice.memory import memory_advice
from neusight.advice.remedies import recorded_batch, savings_of, with_batch
from neusight.recording.recording import Alloc, Batch, Entry, Mark, OpCall, Recording, Step
from op_calls import MATH, call, spec
from small_net import Net, peak, train
from timelines import recording_of

GIB = 2**30


@pytest.mark.parametrize("batch", [4, 24, 64])
def test_another_batch_needs_what_it_needs(plain: neusight.Forecast, batch: int) -> None:
    changed = with_batch(plain.recording, recorded=16, batch=batch)

    assert peak(changed) == pytest.approx(train(batch=batch).peak_memory_bytes, 0.002)


def test_another_batch_of_sequences_that_come_first_needs_what_it_needs() -> None:
    def recorded(batch: int) -> neusight.Forecast:
        with neusight.forecast_on("A100") as forecast:
            model = nn.LSTM(256, 256, 2).cuda()
            for _ in range(3):
                result, _ = model(torch.randn(50, batch, 256).cuda())
                result.square().mean().backward()
        return forecast

    changed = with_batch(recorded(64).recording, recorded=64, batch=160)

    assert peak(changed) == pytest.approx(recorded(160).peak_memory_bytes, 0.01)


def test_inference_is_not_shown_to_checkpoint() -> None:
    with neusight.forecast_on("A100") as forecast, torch.no_grad():
        model = Net(256, False).cuda().eval()
        for _ in range(3):
            model(torch.randint(1000, (16, 128)).cuda())

    advice = memory_advice(forecast.recording, forecast.gpu, limit_bytes=GIB // 2)

    assert not any("checkpoint" in remedy.what for remedy in advice.remedies)
    assert recorded_batch(forecast.recording).samples == 16


@pytest.mark.parametrize(
    ("optimizers", "remedy"),
    [
        (("SGD",), "SGD(fused=True)"),
        (("Rprop",), "Rprop(foreach=False)"),
        (("SGD", "Rprop"), "the optimizer(foreach=False)"),
    ],
)
def test_an_optimizer_of_lists_is_fused_where_torch_has_a_kernel(
    optimizers: tuple[str, ...], remedy: str
) -> None:
    temporary = Alloc(0, 512, op="aten::_foreach_add", phase="optimizer")
    entries: list[Entry] = []
    for name in optimizers:
        mark = f"Optimizer.step#{name}.step"
        entries += [Mark("annotation_begin", mark), temporary, Mark("annotation_end", mark)]
    recording = Recording((Step("train", tuple(entries)),), gpu="A100", torch_version="2.13")

    found = [saving.what for saving in savings_of(recording)]

    assert [what for what in found if "=" in what and "CONF" not in what] == [remedy]


@pytest.mark.parametrize(
    ("batches", "samples"),
    [
        (("setup 9", "eval 4", "train 0", "train 16", "train 8"), 16),
        (("setup 9", "eval 4", "eval 5"), 4),
        (("setup 9", "train 0"), None),
    ],
)
def test_the_recorded_batch_is_that_of_the_first_step_that_trains(
    batches: tuple[str, ...], samples: int | None
) -> None:
    steps = []
    for kind, count in map(str.split, batches):
        batch = Batch(samples=int(count) or None)
        steps.append(Step(kind, (), batch=batch))  # type: ignore[arg-type]

    assert recorded_batch(recording_of(*steps)).samples == samples


@pytest.mark.parametrize(
    ("shape", "alloc", "num_bytes"),
    [
        ((16, 10), {}, 640 // 16 * 24),
        ((32, 5), {}, 640 // 16 * 24),  # a multiple of the batch comes first
        ((10, 16), {}, 640 // 16 * 24),
        ((10, 32), {}, 1280),  # a multiple elsewhere
        ((0, 16), {}, 0),
        ((16, 7), {}, 448),  # a parameter's shape
        ((16, 10), {"phase": "optimizer"}, 640),
        ((16, 10), {"kind": "gradient"}, 640),
    ],
)
def test_what_has_the_batch_in_its_shape_grows_with_it(
    shape: tuple[int, ...], alloc: dict[str, Any], num_bytes: int
) -> None:
    weight, tensor = spec(7, 16), spec(*shape)
    made = Alloc(1, tensor.num_bytes, op="aten::relu", **alloc)
    entries: tuple[Entry, ...] = (
        OpCall(call("zeros", weight), MATH),
        Alloc(0, weight.num_bytes, op="aten::zeros", kind="parameter"),
        OpCall(call("relu", tensor), MATH),
        made,
    )

    [step] = with_batch(recording_of(Step("train", entries)), recorded=16, batch=24).steps

    assert step.entries == (*entries[:3], replace(made, num_bytes=num_bytes))

"""Models that are called in turn, one of them in a loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

import neusight
from neusight.inference.pipeline import (
    ModelCalls,
    Pipeline,
    pipeline_json,
    pipeline_lines,
    pipeline_of,
)
from neusight.recording.recording import Entry, ModelInput
from neusight.timeline.spans import InputSpan, Timeline
from timelines import kernel_span, op, step_span

BATCH, STEPS, IMAGES = 4, 6, 3


class Encoder(nn.Linear):
    """Before the loop."""


class Denoiser(nn.Linear):
    """In the loop."""


class Decoder(nn.Linear):
    """After it."""


def forecast(*, images: int = IMAGES, decodes: bool = True) -> neusight.Forecast:
    with neusight.forecast_on("H100") as found, torch.no_grad():
        encoder, denoiser, decoder = (
            kind(256, 256).cuda().eval() for kind in (Encoder, Denoiser, Decoder)
        )
        for _ in range(images):
            image: Tensor = encoder(torch.ones(BATCH, 256, device="cuda"))
            for _ in range(STEPS):
                both = denoiser(torch.cat([image, image]))
                image = image - both[:BATCH]
            if decodes:
                decoder(image)
    return found


def test_each_model_of_a_pipeline_has_its_time_and_the_last_says_the_samples() -> None:
    found = forecast()
    pipeline = found.pipeline

    assert pipeline is not None
    spent_us = (found.timeline.kernels[-1].end_ns - found.timeline.inputs[0].start_ns) / 1e3
    assert pipeline.latency_us * IMAGES == pytest.approx(spent_us, rel=0.3)
    assert [(turn.module, turn.calls, turn.samples) for turn in pipeline.turns] == [
        ("Encoder", 1, BATCH),
        ("Denoiser", STEPS, 2 * BATCH),
        ("Decoder", 1, BATCH),
    ]
    assert pipeline.samples_per_s == pytest.approx(BATCH * 1e6 / pipeline.latency_us)
    [line] = pipeline_lines(pipeline)
    assert line.startswith("  in turn   Encoder ")
    assert f" x {STEPS}, Decoder " in line
    assert line.endswith(f"samples/s of {BATCH}")


def test_a_pipeline_is_reported_to_a_nanosecond() -> None:
    turns = (ModelCalls("Encoder", 1, None, 7.1234567), ModelCalls("Denoiser", 3, 8, 3.9876543))
    last = ModelCalls("Decoder", 1, 4, 2.7654321)

    known, unknown = Pipeline((*turns, last), True), Pipeline(turns, False)

    assert pipeline_json(known) == {
        "turns": [
            {"module": "Encoder", "calls": 1, "samples": None, "latency_us": 7.123},
            {"module": "Denoiser", "calls": 3, "samples": 8, "latency_us": 3.988},
            {"module": "Decoder", "calls": 1, "samples": 4, "latency_us": 2.765},
        ],
        "is_whole": True,
        "latency_us": 21.852,
        "samples_per_s": 183050.849,
    }
    found = pipeline_json(unknown)
    assert found is not None
    assert (found["latency_us"], found["samples_per_s"]) == (19.086, None)


def test_a_pipeline_that_ends_in_its_loop_says_that_something_may_follow() -> None:
    pipeline = forecast(images=1, decodes=False).pipeline

    assert pipeline is not None
    assert not pipeline.is_whole
    [line] = pipeline_lines(pipeline)
    assert line.endswith("so far; --steps all records what follows")


def test_one_model_alone_is_no_pipeline() -> None:
    with neusight.forecast_on("H100") as found, torch.no_grad():
        model = Denoiser(256, 256).cuda().eval()
        for _ in range(5):
            model(torch.ones(BATCH, 256, device="cuda"))

    assert found.pipeline is None
    assert list(pipeline_lines(None)) == []
    assert found.to_json()["pipeline"] is None


def test_calls_of_one_step_last_until_the_next_begins() -> None:
    """An encoder of 1 ms, a denoiser of 2, 3 and 4, a decoder of 5; then the encoder again."""
    calls = [("E", 1), ("D", 2), ("D", 3), ("D", 4), ("V", 5), ("E", 1)]
    entries: list[Entry] = []
    for module, _ in calls:
        entries += [ModelInput(len(module), 0), op(module=f"{module}.net")]
    ends = [0, *accumulate(1_000_000 * ms for _, ms in calls)]
    kernels = tuple(
        kernel_span(microseconds=1000.0 * ms)._replace(start_ns=end)
        for (_, ms), end in zip(calls, ends, strict=False)
    )
    spans = tuple(InputSpan(ModelInput(4, 0), 0, 0, at) for at in range(len(calls)))
    step = replace(step_span("eval", 16_000.0, entries=tuple(entries)), last_kernel=len(calls))

    found = pipeline_of(Timeline((), kernels, (step,), 0, inputs=spans))

    assert found == Pipeline(
        (
            ModelCalls("E", 1, 4, 1000.0),
            ModelCalls("D", 3, 4, 3000.0),
            ModelCalls("V", 1, 4, 5000.0),
        ),
        True,
    )
    assert found.latency_us == 15_000.0
    assert found.samples_per_s == pytest.approx(4 / 0.015)


@pytest.mark.parametrize(
    ("calls", "is_one", "is_whole"),
    [
        ("EDDDV", True, True),
        ("EDDV", False, False),  # two calls are no loop
        ("EDDD", True, False),
        ("DDDD", False, False),
        ("EDDDVEDDDV", True, True),
        ("EDDDVED", True, True),  # of the last round only the beginning
    ],
)
def test_a_pipeline_has_a_loop_of_three_calls_between_others(
    calls: str, is_one: bool, is_whole: bool
) -> None:
    entries: list[Entry] = []
    for module in calls:
        entries += [ModelInput(4, 0), op(module=module)]
    kernels = (kernel_span(microseconds=1.0),) * len(calls)
    spans = tuple(InputSpan(ModelInput(4, 0), 0, 0, at) for at in range(len(calls)))
    step = replace(step_span("eval", 9.0, entries=tuple(entries)), last_kernel=len(calls))

    found = pipeline_of(Timeline((), kernels, (step,), 0, inputs=spans))

    assert (found is not None) is is_one
    if found is not None:
        assert found.is_whole is is_whole
        assert [turn.calls for turn in found.turns] == [1, 3, 1][: 2 + is_whole]

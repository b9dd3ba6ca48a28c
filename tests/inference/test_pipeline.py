"""Models that are called in turn, one of them in a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neusight
from neusight.inference.pipeline import ModelCalls, Pipeline, pipeline_json, pipeline_lines

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

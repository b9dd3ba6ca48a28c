"""The names that no kind of device is part of."""

from __future__ import annotations

from typing import Any

import torch

import neusight
from neusight.recording.recording import Synchronize


def test_the_accelerator_answers_as_the_gpu() -> None:
    accelerator: Any = torch.accelerator
    before = (torch.Stream, torch.Event, accelerator.synchronize)
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(1024, device="cuda")
        accelerator.synchronize()
        found = (accelerator.memory_allocated(), accelerator.current_stream().stream_id)
        expected = (torch.cuda.memory_allocated(), torch.cuda.current_stream().stream_id)
        assert accelerator.get_memory_info()[1] > 79 * 2**30
        x.relu_()

    assert found == expected
    assert any(isinstance(e, Synchronize) for s in forecast.recording.steps for e in s.entries)
    assert (torch.Stream, torch.Event, accelerator.synchronize) == before


def test_a_stream_of_any_kind_is_one_of_the_gpu() -> None:
    with neusight.forecast_on("H100") as forecast:
        stream: Any = torch.Stream()
        named: Any = torch.Stream("cuda")
        event: Any = torch.Event()
        with stream:
            torch.ones(8, device="cuda").relu_()
            event.record()
        event.wait(named)
        assert isinstance(stream, torch.Stream)
        assert isinstance(torch.cuda.Stream(), torch.Stream)

    assert {kernel.stream for kernel in forecast.timeline.kernels} == {stream.stream_id}
    assert stream.stream_id != named.stream_id

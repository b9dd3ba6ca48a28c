"""Other batches in a recording, compared with programs that run with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neusight
from neusight.advice.memory import memory_advice
from neusight.advice.remedies import recorded_batch, with_batch
from small_net import Net, peak, train

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

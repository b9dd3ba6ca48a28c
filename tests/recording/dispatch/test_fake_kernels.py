"""Fake kernels speak as a GPU does where operands do not go together."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.recording.dispatch.fake_kernels import Devices
from neusight.recording.recording import OpCall
from recorded_programs import entries_of


def on_cpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (lambda: on_gpu(4) + on_cpu(4), "found at least two devices, cuda:0 and cpu!"),
        (lambda: on_cpu(4) * on_gpu(4), "found at least two devices, cuda:0 and cpu!"),
        (lambda: on_gpu(4).add_(on_cpu(4)), "found at least two devices, cuda:0 and cpu!"),
        (
            lambda: on_gpu(4, 4) @ on_cpu(4, 4),
            "got mat2 is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: nn.Linear(4, 4)(on_gpu(4, 4)),
            "got mat1 is on cuda:0, different from other tensors on cpu",
        ),
        (
            lambda: F.cross_entropy(on_gpu(4, 4), torch.zeros(4, dtype=torch.long)),
            "got target is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: F.conv2d(on_gpu(1, 1, 4, 4), on_cpu(1, 1, 2, 2)),
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be "
            "the same",
        ),
        (
            lambda: torch.masked_select(on_gpu(4), torch.ones(4) > 0),
            "got mask is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: torch.bincount(torch.zeros(4, dtype=torch.long, device="cuda"), on_cpu(4)),
            "got weights is on cpu, different from other tensors on cuda:0",
        ),
        (
            lambda: on_gpu(4).__setitem__(torch.tensor([0, 1]), on_cpu(2)),
            "found at least two devices, cuda:0 and cpu!",
        ),
        (
            lambda: on_gpu(4).__setitem__(on_gpu(4) > 0, on_cpu(2)),
            "found at least two devices, cuda:0 and cpu!",
        ),
        (lambda: torch.allclose(on_gpu(4), on_cpu(4)), "on the same device"),
        (lambda: torch.equal(on_gpu(4), on_cpu(4)), "on the same device"),
        (lambda: torch.linalg.lstsq(on_gpu(4, 4), on_cpu(4, 2)), "on the same device"),
        (lambda: torch.binomial(on_gpu(4), on_cpu(4)), "on the same device"),
        (lambda: F.multilabel_margin_loss(on_gpu(4), on_cpu(4).long()), "on the same device"),
        (
            lambda: torch.fake_quantize_per_channel_affine(
                on_gpu(4), on_cpu(4), torch.zeros(4, dtype=torch.int32), 0, 0, 255
            ),
            "on the same device",
        ),
        (
            lambda: torch._nested_tensor_from_mask(on_gpu(2, 3, 4), torch.ones(2, 3) > 0),
            "got mask is on cpu, different from other tensors on cuda:0",
        ),
    ],
)
def test_mixing_devices_fails_as_on_a_gpu(mix: Any, message: str, times: int) -> None:
    with neusight.forecast_on("H100"):
        for _ in range(times):
            with pytest.raises(RuntimeError) as caught:
                mix()

    assert message in str(caught.value)
    if "Input type" not in message:
        assert str(caught.value).startswith("Expected all tensors to be on the same device, but ")


def test_scalars_on_the_cpu_mix_with_anything() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = on_gpu(4) + torch.tensor(2.0)
        x[torch.tensor([0, 1])]
        x.index_select(0, torch.tensor([0], device="cuda"))

    calls = entries_of(forecast, OpCall)
    assert "aten::add" in {call.signature.op for call in calls}


def test_a_device_without_a_number_is_the_current_one() -> None:
    devices = Devices(2)
    devices.current = 1

    assert devices.checked(torch.device("cuda")) == torch.device("cuda", 1)
    assert devices.checked(torch.device("cuda", 0)) == torch.device("cuda", 0)
    assert devices.checked(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 GPU\\)"), (2, "2 GPUs; LOCAL_RANK says which is whose\\)")]
)
def test_a_device_that_is_not_there_is_refused(count: int, words: str) -> None:
    with pytest.raises(RuntimeError, match=rf"invalid device ordinal \(cuda:7, .* has {words}"):
        Devices(count).checked(torch.device("cuda", 7))


def test_what_the_program_lets_go_of_is_kept_by_nobody() -> None:
    with neusight.forecast_on("H100"):
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(on_gpu(4, 64)).sum().backward()
        assert model.weight.grad is not None
        gradient = weakref.ref(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()

        assert gradient() is None

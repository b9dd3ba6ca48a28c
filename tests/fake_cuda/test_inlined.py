"""Answers that compiled programs ask for are compiled with them."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.fake_cuda.inlined import is_tracers_tensor


def test_tensors_of_a_forecast_are_no_tracers() -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))

    with neusight.forecast_on("H100"):
        assert not is_tracers_tensor(torch.ones(2, device="cuda"))

    assert is_tracers_tensor(fake)
    assert not is_tracers_tensor(3)


def test_transformers_question_breaks_no_graph() -> None:
    utils = pytest.importorskip("transformers.utils.import_utils")

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 3 if utils.is_fake_tensor(x) else x * 2

    with neusight.forecast_on("H100"):
        compiled = torch.compile(doubled, fullgraph=True, backend="eager")
        assert compiled(torch.ones(2, device="cuda")).shape == (2,)


def test_tensors_made_of_values_are_part_of_a_graph() -> None:
    """`torch.tensor` is ours in a forecast; it breaks no graph."""

    def bounded(x: torch.Tensor) -> torch.Tensor:
        return torch.min(x, torch.tensor(2.0)) + torch.tensor([1.0, 2.0], device=x.device)

    with neusight.forecast_on("H100"):
        compiled = torch.compile(bounded, fullgraph=True, backend="eager")
        assert compiled(torch.ones(64, 2, device="cuda")).shape == (64, 2)


def test_an_encoder_layer_is_one_graph() -> None:
    """`has_torch_function`, which it asks in eval, is ours in a forecast."""
    with neusight.forecast_on("H100"):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device="cuda").eval()
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        with torch.no_grad():
            assert compiled(torch.ones(2, 4, 8, device="cuda")).shape == (2, 4, 8)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float32, torch.float32), torch.float32),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.int32, torch.int64), torch.int64),
        ((torch.float64, torch.int64), torch.float64),
    ],
)
def test_single_values_of_the_gpu_in_a_list_make_a_tensor(
    dtypes: tuple[torch.dtype, torch.dtype], expected: torch.dtype
) -> None:
    on_cpu = torch.tensor([torch.ones((), dtype=dtype) for dtype in dtypes])
    with neusight.forecast_on("H100") as forecast:
        values = [torch.ones((), dtype=dtype, device="cuda") for dtype in dtypes]
        made = torch.tensor(values)
        nested = torch.as_tensor([values, [1, 2]], device="cuda")
        mixed = torch.tensor([0, values[0], 2.5], device="cuda", dtype=torch.float16)

    assert made.dtype == on_cpu.dtype == expected
    assert (made.device.type, nested.device.type) == ("cpu", "cuda")
    assert (nested.shape, nested.dtype) == ((2, 2), expected if expected.is_floating_point else
                                            torch.int64)  # fmt: skip
    assert (mixed.shape, mixed.dtype) == ((3,), torch.float16)
    assert forecast.verdict.num_synchronizations >= 2

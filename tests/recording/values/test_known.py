"""A storage keeps its value for as long as it lives and somebody knows it."""

from __future__ import annotations

import gc

import pytest
import torch

from neusight.recording.recorder import Recorder
from neusight.recording.recording import Argument, OpSignature, TensorSpec
from neusight.recording.tensor import ForecastTensor
from neusight.recording.values.known import KnownValues, is_small, may_be_known
from recorded_programs import values_of

aten = torch.ops.aten


def on_gpu(*shape: int) -> ForecastTensor:
    like = torch.empty(shape)
    return Recorder().mode.new_tensor(shape, like.stride(), like.dtype, torch.device("cuda", 0))


def test_a_value_that_was_set_is_that_of_the_storage() -> None:
    known, tensor = KnownValues(), on_gpu(2, 2)
    assert tensor not in known

    known.set(tensor, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))

    assert tensor in known
    assert known.of(tensor).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert known.is_sure(tensor)


def test_a_view_of_larger_elements_leaves_out_the_bytes_at_the_end() -> None:
    def program() -> list[int]:
        numbers: list[int] = (
            torch.arange(10, dtype=torch.uint8, device="cuda")[:8].view(torch.int32).tolist()
        )
        return numbers

    assert values_of(program) == [0x03020100, 0x07060504]


def test_a_value_that_rests_on_an_invented_one_is_not_sure_until_it_is_set_again() -> None:
    known, tensor = KnownValues(), on_gpu(2)
    known.set(tensor, torch.ones(2))

    known.record_invented(tensor)
    assert (known.is_invented(tensor), known.is_sure(tensor)) == (True, False)
    known.set(tensor, torch.zeros(2))
    assert (known.is_invented(tensor), known.is_sure(tensor)) == (False, True)


def test_what_an_op_writes_over_is_forgotten_and_nothing_else() -> None:
    known, target, source = KnownValues(), on_gpu(2), on_gpu(2)
    for tensor in (target, source):
        known.set(tensor, torch.ones(2))

    known.forget_written(aten.add_.Tensor, (target, source), {})

    assert (target in known, source in known) == (False, True)


def test_a_value_ends_with_its_storage() -> None:
    known, tensor = KnownValues(), on_gpu(2)
    known.set(tensor, torch.ones(2))
    key = tensor.untyped_storage()._cdata

    del tensor
    gc.collect()
    known.forget(key)  # once more does no harm

    with pytest.raises(KeyError):
        known.of(on_gpu(2))


@pytest.mark.parametrize(
    ("num_elements", "dtype", "is_followed"),
    [
        (64, torch.float32, True),
        (65, torch.float32, False),
        (65, torch.complex64, False),
        (2**20, torch.int64, True),
        (2**20 + 1, torch.bool, False),
    ],
)
def test_few_floats_and_many_integers_are_followed(
    num_elements: int, dtype: torch.dtype, is_followed: bool
) -> None:
    assert is_small(torch.empty(num_elements, dtype=dtype)) is is_followed


def spec(num_elements: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec((num_elements,), (1,), dtype)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "may"),
    [
        ("aten::add", [spec(64), spec(64)], spec(64), True),
        ("aten::add", [spec(64), spec(65)], spec(64), False),
        ("aten::add_", [spec(64), spec(65)], spec(65), True),
        ("aten::add_", [spec(65)], spec(65), False),
        ("aten::any", [spec(4096)], spec(1, "bool"), True),
        ("aten::_fused_sgd_", [spec(4096)], None, False),
        ("aten::nothing", [], None, False),
    ],
)
def test_small_results_of_small_operands_may_be_known(
    op: str, inputs: list[TensorSpec], output: Argument, may: bool
) -> None:
    arguments = tuple((f"x{number}", value) for number, value in enumerate(inputs))

    assert may_be_known(OpSignature(op, "Tensor", arguments, (output,))) is may

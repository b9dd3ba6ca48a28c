"""Softmax: what it reads and writes."""

from __future__ import annotations

from neusight.recording.recording import MathMode
from op_calls import call, kernels, spec


def test_a_masked_softmax_reads_a_byte_of_mask_an_element() -> None:
    x, mask = spec(4, 8), spec(4, 8, dtype="bool")

    (forward,) = kernels(call("_masked_softmax", x, self=x, mask=mask, dim=None, mask_type=2))
    (backward,) = kernels(
        call("_masked_softmax_backward", x, grad_output=x, output=x, mask=mask, dim=None)
    )

    assert (forward.bytes_read, forward.bytes_written, forward.size) == (160, 128, (4, 8))
    assert (backward.bytes_read, backward.bytes_written) == (288, 128)


def test_a_safe_softmax_zeroes_rows_that_are_masked_whole() -> None:
    x = spec(4, 8)

    launched = kernels(call("_safe_softmax", x, self=x, dim=-1, dtype=None))

    assert [kernel.name for kernel in launched] == ["softmax", "eq", "all", "fill", "where"]
    assert [kernel.bytes_written for kernel in launched] == [128, 32, 4, 4, 128]


def test_a_softmax_of_nothing_launches_nothing() -> None:
    assert kernels(call("_softmax", spec(0, 8), self=spec(0, 8), dim=1)) == ()


def test_before_torch_2_7_wide_rows_that_begin_unaligned_go_element_by_element() -> None:
    def layout(width: int, dtype: str, torch: tuple[int, int] = (2, 6)) -> str:
        x = spec(64, width, dtype=dtype)
        signature = call("_softmax", x, self=x, dim=-1, half_to_float=False)
        return kernels(signature, MathMode(torch=torch))[0].layout

    assert layout(3137, "bfloat16", (2, 7)) == "contiguous"
    assert (layout(3137, "bfloat16"), layout(3136, "bfloat16")) == ("scalar", "contiguous")
    assert (layout(3140, "float32"), layout(577, "bfloat16")) == ("contiguous", "contiguous")

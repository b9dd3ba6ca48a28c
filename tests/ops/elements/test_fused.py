"""Kernels of torch.compile: they say themselves what they move."""

from __future__ import annotations

from typing import Any

from neusight.ops import is_mapped
from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec


def fused(**changes: Any) -> Any:
    given = {
        "in_ptr0": spec(64, 512, dtype="bfloat16"),
        "kind": "pointwise",
        "numels": (32768,),
        "bytes_read": 65536,
        "bytes_written": 131072,
        "bytes_read_again": 0,
        "num_operations": 3,
        "origins": ("relu.default",),
    }
    return call("inductor::triton_poi_fused_relu_0", **{**given, **changes})


def test_a_pointwise_kernel_moves_what_it_says() -> None:
    (kernel,) = kernels(fused())

    assert kernel.kernel_class is KernelClass.ELEMENTWISE
    assert kernel.name == "triton_poi_fused_relu_0"
    assert (kernel.bytes_read, kernel.bytes_written) == (65536, 131072)
    assert (kernel.dtype, kernel.flops) == ("bfloat16", 3 * 32768)


def test_a_reductions_rows_are_all_its_sizes_but_the_last() -> None:
    (kernel,) = kernels(fused(kind="reduction", numels=(4, 16, 512), bytes_read_again=65536))

    assert kernel.kernel_class is KernelClass.REDUCTION
    assert tuple(kernel.size) == (64, 512)
    assert kernel.bytes_read_again == 65536


def test_a_kernel_over_nothing_is_none() -> None:
    assert kernels(fused(numels=(0,))) == ()


def test_only_names_of_triton_kernels_are_known() -> None:
    assert is_mapped("inductor::triton_red_fused_7")
    assert not is_mapped("inductor::accumulate_grad")


def test_instructions_are_those_of_all_elements() -> None:
    (kernel,) = kernels(fused(num_instructions=7))

    assert kernel.num_instructions == 7 * 32768


def test_a_row_kept_in_registers_is_rounded_up() -> None:
    """27 elements take 32 threads."""
    sizes = {"numels": (1000, 27), "num_instructions": 2}
    (persistent,) = kernels(fused(kind="persistent_reduction", **sizes))
    (looped,) = kernels(fused(kind="reduction", **sizes))

    assert persistent.num_instructions == 2 * 1000 * 32
    assert looped.num_instructions == 2 * 1000 * 27


def test_what_is_written_over_what_was_read_lies_in_one_place() -> None:
    image = spec(64, 512)
    (beside,) = kernels(fused(in_ptr0=image, bytes_read=131072))
    (above,) = kernels(fused(in_out_ptr0=image, bytes_read=131072))

    assert beside.bytes_in_place == 0
    assert above.bytes_in_place == image.num_bytes == 131072


def test_a_pointwise_kernel_of_two_sizes_goes_by_tiles() -> None:
    by_kind = {
        kind: kernels(fused(kind=kind, numels=(64, 512)))[0].along_columns
        for kind in ("pointwise", "foreach", "reduction")
    }

    assert by_kind == {"pointwise": True, "foreach": False, "reduction": False}
    assert not kernels(fused(numels=(32768,)))[0].along_columns

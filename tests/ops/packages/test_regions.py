"""Kernels of torchvision's own ops."""

from __future__ import annotations

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec

MAPS, ROIS = spec(2, 16, 32, 32), spec(10, 5)


def test_regions_read_no_more_than_their_samples_or_the_maps() -> None:
    few = {"input": MAPS, "rois": ROIS, "sampling_ratio": 2}

    [small] = kernels(call("torchvision::roi_align", spec(1, 16, 2, 2), **few))
    [large] = kernels(call("torchvision::roi_align", spec(10, 16, 7, 7), **few))

    assert small.bytes_read == 4 * 4 * 64 * 4 + 200  # 4 samples of 4 neighbours, 64 elements
    assert large.bytes_read == 2 * 16 * 32 * 32 * 4 + 200
    assert large.flops == 11 * 4 * 10 * 16 * 7 * 7


def test_their_gradient_is_added_to_zeros() -> None:
    given = {"grad": spec(10, 16, 7, 7), "rois": ROIS, "argmax": spec(10, 16, 7, 7, dtype="int32")}

    fill, scatter = kernels(call("torchvision::_roi_pool_backward", MAPS, **given))

    assert fill.bytes_written == scatter.bytes_written == 2 * 16 * 32 * 32 * 4
    assert scatter.is_backward


def test_boxes_are_sorted_compared_in_pairs_and_gathered() -> None:
    given = {"dets": spec(128, 4), "scores": spec(128)}

    found = kernels(call("torchvision::nms", spec(7, dtype="int64"), **given))

    (pairs,) = [kernel for kernel in found if kernel.name == "nms"]
    assert any(kernel.kernel_class is KernelClass.SORT for kernel in found)
    assert (pairs.flops, pairs.bytes_written) == (16 * 128 * 128 // 2, 128 * 2 * 8)
    assert kernels(call("torchvision::nms", spec(0), dets=spec(0, 4), scores=spec(0))) == ()


def _deformed(name: str, images: int, **given: object) -> tuple[int, int]:
    """The operations of all products, and how many kernels gather or scatter samples: 16 channels
    to 8, 3 x 3 taps, maps of 32 x 32, 2 groups."""
    taken = {
        "input": spec(images, 16, 32, 32), "weight": spec(8, 8, 3, 3),
        "offset": spec(images, 18, 32, 32), "mask": spec(images, 9, 32, 32), "bias": spec(8),
        "groups": 2,
    }  # fmt: skip
    result = spec(images, 8, 32, 32)
    found = kernels(call(f"torchvision::{name}", result, **taken, **given))
    num_gathers = sum(kernel.kernel_class is KernelClass.GATHER for kernel in found)
    return sum(k.flops for k in found if k.kernel_class is KernelClass.GEMM), num_gathers


def test_a_deformable_convolution_multiplies_as_much_as_a_plain_one() -> None:
    plain = 2 * (8 * 32 * 32) * (8 * 9)

    assert _deformed("deform_conv2d", 2) == (2 * plain, 1)
    assert _deformed("deform_conv2d", 64) == (64 * plain, 2)  # 32 images a launch
    grad = spec(2, 8, 32, 32)
    assert _deformed("_deform_conv2d_backward", 2, grad=grad) == (2 * 2 * plain, 3)

"""Pooling and resampling: windows, and what is read and written."""

from __future__ import annotations

import pytest

from op_calls import call, kernels, names, spec


def test_max_pooling_reads_the_image_once_and_writes_values_and_positions() -> None:
    """8 images of 16 x 32 x 32 floats by windows of 2 x 2: a quarter, as floats and int64."""
    image, small = spec(8, 16, 32, 32), spec(8, 16, 16, 16)
    positions = spec(8, 16, 16, 16, dtype="int64")

    (kernel,) = kernels(
        call("max_pool2d_with_indices", small, positions, self=image, kernel_size=(2, 2))
    )

    assert (kernel.name, kernel.size) == ("max_pool", (8 * 16 * 16 * 16, 4))
    assert kernel.bytes_read == 4 * 8 * 16 * 32 * 32
    assert kernel.bytes_written == 12 * 8 * 16 * 16 * 16


@pytest.mark.parametrize(("kernel_size", "window"), [((3, 5), 15), ((3,), 9), ((), 4)])
def test_a_window_is_what_is_stated_of_it_or_the_share_of_the_image(
    kernel_size: tuple[int, ...], window: int
) -> None:
    name = "avg_pool2d" if kernel_size else "_adaptive_avg_pool2d"
    given = {"kernel_size": kernel_size} if kernel_size else {"output_size": (16, 16)}

    (kernel,) = kernels(call(name, spec(1, 1, 16, 16), self=spec(1, 1, 32, 32), **given))

    assert kernel.size == (256, window)


def test_gradients_that_overlap_start_from_zeros() -> None:
    image, small = spec(2, 3, 8, 8), spec(2, 3, 4, 4)
    positions = spec(2, 3, 4, 4, dtype="int64")

    zeros, scatter = kernels(
        call("max_pool2d_with_indices_backward", image, grad_output=small, self=image,
             kernel_size=(2, 2), indices=positions)
    )  # fmt: skip
    (gather,) = kernels(call("avg_pool2d_backward", image, grad_output=small, self=image))

    assert (zeros.name, zeros.bytes_written) == ("fill", 4 * 2 * 3 * 64)
    assert (scatter.bytes_read, scatter.bytes_written) == (12 * 2 * 3 * 16, 4 * 2 * 3 * 64)
    assert (gather.bytes_read, gather.bytes_written) == (4 * 2 * 3 * 16, 4 * 2 * 3 * 64)


def test_an_image_in_nhwc_stays_so() -> None:
    image, small = spec(2, 8, 8, 8, channels_last=True), spec(2, 8, 4, 4, channels_last=True)

    (kernel,) = kernels(call("avg_pool2d", small, self=image, kernel_size=(2, 2)))

    assert kernel.layout == "channels_last"


def test_resampling_is_one_kernel_and_a_smooth_gradient_needs_zeros() -> None:
    small, large = spec(2, 3, 8, 8), spec(2, 3, 16, 16)

    (up,) = kernels(call("upsample_bilinear2d", large, self=small, output_size=(16, 16)))
    assert (up.bytes_read, up.bytes_written) == (4 * 2 * 3 * 64, 4 * 2 * 3 * 256)
    assert names(call("upsample_nearest2d_backward", small, grad_output=large)) == [
        "upsample_backward"
    ]
    assert names(call("upsample_bilinear2d_backward", small, grad_output=large)) == [
        "fill",
        "upsample_backward",
    ]


def test_a_grid_reads_image_and_points() -> None:
    """A point is two floats; its gradient too, and the image's starts from zeros."""
    image, grid, result = spec(1, 3, 8, 8), spec(1, 4, 4, 2), spec(1, 3, 4, 4)

    (forward,) = kernels(call("grid_sampler_2d", result, input_=image, grid=grid))
    zeros, backward = kernels(
        call("grid_sampler_2d_backward", image, grid, grad_output=result, input_=image, grid=grid)
    )

    assert (forward.bytes_read, forward.bytes_written) == (4 * (192 + 32), 4 * 48)
    assert zeros.bytes_written == 4 * 192
    assert (backward.bytes_read, backward.bytes_written) == (4 * (48 + 192 + 32), 4 * (192 + 32))


def test_bilinear_resampling_states_its_planes_in_nchw_alone() -> None:
    def resampled(name: str, *, channels_last: bool) -> tuple[object, ...]:
        image = spec(2, 8, 4, 4, channels_last=channels_last)
        result = spec(2, 8, 8, 8, channels_last=channels_last)
        (kernel,) = kernels(call(name, result, self=image))
        return kernel.variant, kernel.size

    assert resampled("upsample_bilinear2d", channels_last=False) == ("bilinear", (16, 64))
    assert resampled("upsample_bilinear2d", channels_last=True) == ("bilinear", (1, 1024))
    assert resampled("upsample_nearest2d", channels_last=False) == ("nearest", (1, 1024))
    assert resampled("upsample_bicubic2d", channels_last=False) == ("", (1, 1024))

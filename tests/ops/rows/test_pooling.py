"""Pooling and resampling: windows, and what is read and written."""

from __future__ import annotations

import pytest

from op_calls import call, kernels, names, spec


@pytest.mark.parametrize(("kernel_size", "window"), [((3, 5), 15), ((3,), 9), ((), 4)])
def test_a_window_is_what_is_stated_of_it_or_the_share_of_the_image(
    kernel_size: tuple[int, ...], window: int
) -> None:
    name = "avg_pool2d" if kernel_size else "_adaptive_avg_pool2d"
    given = {"kernel_size": kernel_size} if kernel_size else {"output_size": (16, 16)}

    (kernel,) = kernels(call(name, spec(1, 1, 16, 16), self=spec(1, 1, 32, 32), **given))

    assert kernel.size == (256, window)


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

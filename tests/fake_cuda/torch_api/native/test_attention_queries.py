"""Which attention kernels a call could take."""

from __future__ import annotations

import pytest
import torch

import neusight


@pytest.mark.parametrize(
    ("gpu", "dtype", "flash", "efficient"),
    [
        ("H100", torch.bfloat16, True, True),
        ("H100", torch.float32, False, True),
        ("V100", torch.float16, False, True),
    ],
)
def test_the_target_says_which_kernels_take_a_call(
    gpu: str, dtype: torch.dtype, flash: bool, efficient: bool
) -> None:
    backends = torch.backends.cuda
    with neusight.forecast_on(gpu):
        x = torch.ones(2, 8, 128, 64, device="cuda", dtype=dtype)
        params = backends.SDPAParams(x, x, x, None, 0.0, True, False)
        assert backends.is_flash_attention_available()
        assert backends.can_use_flash_attention(params) is flash
        assert backends.can_use_efficient_attention(params) is efficient

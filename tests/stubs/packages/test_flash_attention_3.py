"""FlashAttention-3: its functions return, launch and keep what the package's do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from stub_calls import Case, assert_as_before, cuda


def flash(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    found = getattr(importlib.import_module("flash_attn_interface"), name)
    return lambda: found(*args, **kwargs)


def bounds() -> torch.Tensor:
    return torch.tensor([0, 256, 512], dtype=torch.int32, device="cuda")


CASES: dict[str, Case] = {
    "flash_attn_func": lambda: flash(
        "flash_attn_func", cuda(2, 256, 4, 64), cuda(2, 256, 2, 64), cuda(2, 256, 2, 64)
    ),
    "flash_attn_qkvpacked_func": lambda: flash(
        "flash_attn_qkvpacked_func", cuda(2, 256, 3, 4, 64), causal=True
    ),
    "flash_attn_qkvpacked_func of 4 heads and 2 of keys": lambda: flash(
        "flash_attn_qkvpacked_func", cuda(2, 256, 8, 64), num_heads_q=4
    ),
    "flash_attn_qkvpacked_func of 4 heads and as many of keys": lambda: flash(
        "flash_attn_qkvpacked_func", cuda(2, 256, 12, 64), window_size=(31, 32)
    ),
    "flash_attn_func, causal, last 32 keys": lambda: flash(
        "flash_attn_func", *(cuda(2, 256, 4, 64) for _ in range(3)),
        causal=True, window_size=(31, 0),
    ),
    "flash_attn_func, causal, last key": lambda: flash(
        "flash_attn_func", *(cuda(2, 256, 4, 64) for _ in range(3)),
        causal=True, window_size=(0, 0),
    ),
    "flash_attn_varlen_func": lambda: flash(
        "flash_attn_varlen_func",
        *(cuda(512, 4, 64), cuda(512, 4, 64), cuda(512, 4, 64)),
        *(bounds(), bounds(), 256, 256),
        causal=True,
    ),
    "flash_attn_with_kvcache": lambda: flash(
        "flash_attn_with_kvcache",
        cuda(2, 1, 4, 64, grad=False),
        *(cuda(2, 1024, 2, 64, grad=False), cuda(2, 1024, 2, 64, grad=False)),
    ),
    "flash_attn_with_kvcache of packed queries": lambda: flash(
        "flash_attn_with_kvcache",
        cuda(4, 4, 64, grad=False),
        *(cuda(2, 1024, 2, 64, grad=False), cuda(2, 1024, 2, 64, grad=False)),
        cu_seqlens_q=bounds(),
    ),
    "flash_attn_with_kvcache of one sequence": lambda: flash(
        "flash_attn_with_kvcache",
        cuda(4, 4, 64, grad=False),
        *(cuda(1, 1024, 2, 64, grad=False), cuda(1, 1024, 2, 64, grad=False)),
        cu_seqlens_q=torch.tensor([0, 4], dtype=torch.int32, device="cuda"),
    ),
    "flash_attn_with_kvcache of rows": lambda: flash(
        "flash_attn_with_kvcache",
        cuda(4, 4, 64, grad=False),
        *(cuda(1, 1024, 2, 64, grad=False), cuda(1, 1024, 2, 64, grad=False)),
    ),
}  # fmt: skip


def test_each_function_is_as_in_the_table() -> None:
    assert_as_before("flash_attn_interface", CASES)

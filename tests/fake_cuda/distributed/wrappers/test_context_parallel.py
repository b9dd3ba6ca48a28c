"""Context parallel: ranks share a sequence, and their attention passes keys and values round."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import communication, join, moved_bytes
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

import neusight

RANKS, BATCH, LENGTH, HEADS, WIDTH = 4, 2, 1024, 8, 64
#: Bytes of a rank's own keys and values in bfloat16.
OWN_BYTES = 2 * BATCH * LENGTH // RANKS * HEADS * WIDTH * 2


@pytest.mark.parametrize("rank", [0, 3])
def test_keys_and_values_are_gathered_forward_and_passed_round_backward(rank: int) -> None:
    from torch.distributed.tensor.experimental import context_parallel

    with neusight.forecast_on("H100", world_size=RANKS, rank=rank) as forecast:
        join()
        mesh = init_device_mesh("cuda", (RANKS,), mesh_dim_names=("cp",))
        to_heads = torch.nn.Linear(512, 3 * HEADS * WIDTH).cuda().bfloat16()
        x = torch.randn(BATCH, LENGTH, 512, device="cuda", dtype=torch.bfloat16)
        parallel: Any = context_parallel
        with (
            parallel(mesh, buffers=[x], buffer_seq_dims=[1]),
            sdpa_kernel([SDPBackend.FLASH_ATTENTION]),
        ):
            parts = to_heads(x).chunk(3, -1)
            q, k, v = (t.view(BATCH, -1, HEADS, WIDTH).transpose(1, 2) for t in parts)
            assert q.shape[2] == LENGTH // RANKS
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    counts = Counter(
        (call.signature.op.rpartition("::")[2], call.phase)
        for step in forecast.recording.steps
        for call in communication(step)
    )
    assert counts == {
        ("all_gather_into_tensor", "forward"): 1,
        ("all_gather_into_tensor", "backward"): 1,
        ("all_to_all_single", "backward"): RANKS,
    }
    moved = sum(map(moved_bytes, forecast.recording.steps), Counter[tuple[str, str]]())
    assert moved["all_gather", "forward"] == RANKS * OWN_BYTES
    assert moved["all_gather", "backward"] == RANKS * OWN_BYTES
    assert moved["all_to_all", "backward"] == RANKS * 2 * OWN_BYTES  # gradients in float32

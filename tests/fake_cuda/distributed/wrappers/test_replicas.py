"""Replicated models under every option of DistributedDataParallel, and ZeRO's optimizer."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import WIDTH, Block, join, moved_bytes, train, training_step
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import neusight

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of its optimizers in TorchScript
    from torch.distributed.optim import ZeroRedundancyOptimizer

Replicated = nn.parallel.DistributedDataParallel

#: Bytes of a block's parameters in FP32.
BLOCK_BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)


class WithUnused(nn.Module):
    """Two blocks, of which one is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x)
        return y


def reduced(steps: int = 5, rank: int = 0, model: Any = None, **options: Any) -> dict[Any, int]:
    """What a step of a replicated model moves."""
    with neusight.forecast_on("H100", world_size=8, rank=rank) as forecast:
        join()
        train(Replicated((model or Block)().cuda(), **options), steps=steps)
    assert not forecast.recording.warnings
    return dict(moved_bytes(training_step(forecast)))


@pytest.mark.parametrize("rank", [0, 7])
def test_gradients_of_unused_parameters_are_reduced_with_a_map_of_the_used(rank: int) -> None:
    # An INT32 each of 8 parameters says who used it (reducer.cpp, all_reduce_local_used_map).
    assert reduced(rank=rank, model=WithUnused, find_unused_parameters=True) == {
        ("all_reduce", "backward"): 2 * BLOCK_BYTES + 8 * 4
    }


@pytest.mark.parametrize("rank", [0, 7])
@pytest.mark.parametrize(
    "options",
    [{"static_graph": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}],
)
def test_options_of_buckets_leave_the_bytes_as_they_are(rank: int, options: Any) -> None:
    assert reduced(rank=rank, **options) == {("all_reduce", "backward"): BLOCK_BYTES}


def test_mixed_precision_reduces_half_the_bytes() -> None:
    from torch.nn.parallel import distributed

    policy: Any = vars(distributed)["_MixedPrecision"]
    bf16 = policy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

    assert reduced(mixed_precision=bf16) == {("all_reduce", "backward"): BLOCK_BYTES // 2}


def test_what_is_logged_of_replicas_can_be_read() -> None:
    with neusight.forecast_on("H100", world_size=8):
        join()
        model: Any = Replicated(Block().cuda())
        assert model._get_ddp_logging_data() == {}


def hooked(hook: Any, state: Any = None, **options: Any) -> dict[Any, int]:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = Replicated(Block().cuda())
        model.register_comm_hook(state and state(**options), hook)
        train(model, steps=5)
    return dict(moved_bytes(training_step(forecast)))


@pytest.mark.parametrize(
    ("hook", "share"),
    [
        (default_hooks.allreduce_hook, 1),
        (default_hooks.fp16_compress_hook, 2),
        (default_hooks.bf16_compress_hook, 2),
    ],
)
def test_a_compressing_hook_halves_what_is_reduced(hook: Any, share: int) -> None:
    assert hooked(hook) == {("all_reduce", "backward"): BLOCK_BYTES // share}


def test_low_rank_gradients_are_two_thin_matrices() -> None:
    found = hooked(
        powerSGD_hook.powerSGD_hook,
        powerSGD_hook.PowerSGDState,
        process_group=None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=2,
    )

    # Of each weight (m x n) a column of m and one of n; biases whole.
    weights, biases = 2 * (4 * WIDTH + WIDTH), 5 * WIDTH
    assert found == {("all_reduce", "backward"): 4 * (weights + biases)}


def test_uneven_inputs_ask_how_many_still_train() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = Replicated(Block().cuda())
        with model.join():
            train(model)

    assert dict(moved_bytes(training_step(forecast))) == {
        ("all_reduce", "forward"): 2 * 4,  # still here? synchronises in backward?
        ("all_reduce", "backward"): BLOCK_BYTES,
    }


def zero(rank: int, **options: Any) -> tuple[dict[Any, int], Any]:
    with neusight.forecast_on("H100", world_size=8, rank=rank) as forecast:
        join()
        model = Replicated(nn.Sequential(Block(), Block()).cuda())
        x = torch.randn(4, 16, WIDTH, device="cuda")
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.consolidate_state_dict(**({"to": rank} if rank else {}))  # else to rank 0
        state = optimizer.state_dict()
    return dict(moved_bytes(training_step(forecast))), state


@pytest.mark.parametrize("rank", [0, 7])
@pytest.mark.parametrize("as_views", [False, True])
def test_sharded_optimizer_states_broadcast_what_they_updated(rank: int, as_views: bool) -> None:
    moved, state = zero(rank, parameters_as_bucket_view=as_views)

    assert moved == {
        ("all_reduce", "backward"): 2 * BLOCK_BYTES,
        ("broadcast", "optimizer"): 2 * BLOCK_BYTES,
    }
    sizes = [one["exp_avg"].numel() for one in state["state"].values()]
    assert sum(sizes) * 4 == 2 * BLOCK_BYTES


def test_updates_that_overlap_backward_move_the_same() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step

    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = Replicated(Block().cuda(), gradient_as_bucket_view=True)
        optimizer: Any = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook = hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
        model.register_comm_hook(None, hook)
        x = torch.randn(4, 16, WIDTH, device="cuda")
        for _ in range(6):
            model(x).sum().backward()
            optimizer.step()  # says that it does nothing

    assert dict(moved_bytes(training_step(forecast))) == {
        ("all_reduce", "backward"): BLOCK_BYTES,
        ("broadcast", "backward"): BLOCK_BYTES,
    }


def test_replicas_of_several_processes_average_now_and_then() -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = Block().cuda()
        model(torch.randn(4, 16, WIDTH, device="cuda")).sum().backward()
        PeriodicModelAverager(period=2).average_parameters(model.parameters())

    assert dict(moved_bytes(forecast.recording.steps[-1])) == {
        ("all_reduce", "forward"): BLOCK_BYTES
    }
    assert not dist.is_initialized()

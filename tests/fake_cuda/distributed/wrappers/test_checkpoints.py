"""Sharded and whole checkpoints, written and read by one rank of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import WIDTH, Block, join
from torch import nn
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard

import neusight
from neusight.recording.recording import OpCall
from recorded_programs import entries_of

checkpoint: Any = torch_checkpoint  # names that it does not export by its own account

#: Bytes of a block's parameters in FP32.
BLOCK_BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)


def trained(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer after one step."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 16, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("rank", [0, 7])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_checkpoint_is_written_and_read_back(rank: int, is_whole: bool, tmp_path: Path) -> None:
    options = states.StateDictOptions(full_state_dict=is_whole, cpu_offload=is_whole)
    with neusight.forecast_on("H100", world_size=8, rank=rank):
        join()
        model: Any = fully_shard(Block().cuda())
        optimizer = trained(model)
        of_model, of_optimizer = states.get_state_dict(model, optimizer, options=options)
        whole: dict[str, Any] = {"model": of_model, "optimizer": of_optimizer, "step": 3}
        checkpoint.save(whole, checkpoint_id=tmp_path / "last")
        whole["step"] = 0
        checkpoint.load(whole, checkpoint_id=tmp_path / "last")
        states.set_state_dict(
            model,
            optimizer,
            model_state_dict=of_model,
            optim_state_dict=of_optimizer,
            options=options,
        )
        trained(model)

    assert whole["step"] == 3


@pytest.mark.parametrize("rank", [0, 7])
def test_a_checkpoint_of_replicas_is_read_back(rank: int, tmp_path: Path) -> None:
    with neusight.forecast_on("H100", world_size=8, rank=rank):
        join()
        model = nn.parallel.DistributedDataParallel(Block().cuda())
        whole = {"model": model.state_dict(), "step": 3}
        checkpoint.save(whole, checkpoint_id=tmp_path / "last")
        whole["step"] = 0
        checkpoint.load(whole, checkpoint_id=tmp_path / "last")

    assert whole["step"] == 3


def test_an_asynchronous_save_ends(tmp_path: Path) -> None:
    with neusight.forecast_on("H100", world_size=8):
        join()
        model: Any = fully_shard(Block().cuda())
        trained(model)
        saving: Any = checkpoint.async_save(
            {"model": model.state_dict()}, checkpoint_id=tmp_path / "last"
        )
        assert saving.result() is not None


@pytest.mark.parametrize("rank", [0, 7])
def test_rank_zeros_weights_are_broadcast_whole(rank: int) -> None:
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    whole = Block().state_dict() if rank == 0 else {}
    with neusight.forecast_on("H100", world_size=8, rank=rank) as forecast:
        join()
        model: Any = fully_shard(Block().cuda())
        states.set_model_state_dict(model, whole, options=options)
        trained(model)

    broadcasts = [
        entry.signature.input_tensors[0].numel * 4
        for entry in entries_of(forecast, OpCall)
        if entry.signature.op == "c10d::broadcast_"
    ]
    assert sum(broadcasts) == BLOCK_BYTES


@pytest.mark.parametrize("kind", [StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_first_fsdp_saves_and_loads(kind: StateDictType) -> None:
    with neusight.forecast_on("H100", world_size=8, rank=7) as forecast:
        join()
        model: Any = FullyShardedDataParallel(Block().cuda(), use_orig_params=True)
        optimizer = trained(model)
        with FullyShardedDataParallel.state_dict_type(model, kind):
            model.load_state_dict(model.state_dict())
            state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
            state = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, state)
            optimizer.load_state_dict(state)
        trained(model)

    assert [text for text in forecast.recording.warnings if "gathers optimizer states" in text]

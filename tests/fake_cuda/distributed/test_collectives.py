"""Collectives of every wrapper: how many, of how many bytes, in which phase."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import WIDTH, Block, communication, join, moved_bytes, train, training_step
from torch import nn

import neusight
from neusight.recording.recording import FIRST_COMMUNICATION_STREAM, OpCall

#: Bytes of a block's parameters in FP32.
BLOCK_BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)


@pytest.mark.parametrize("rank", [0, 7])
def test_data_parallel_reduces_every_gradient_once(rank: int) -> None:
    with neusight.forecast_on("H100", world_size=8, rank=rank) as forecast:
        join()
        train(nn.parallel.DistributedDataParallel(nn.Sequential(Block(), Block()).cuda()))

    step = training_step(forecast)
    assert moved_bytes(step) == {("all_reduce", "backward"): 2 * BLOCK_BYTES}
    assert {call.stream for call in communication(step)} == {FIRST_COMMUNICATION_STREAM}
    assert not forecast.recording.warnings


def test_without_synchronisation_nothing_is_reduced() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = nn.parallel.DistributedDataParallel(Block().cuda())
        x = torch.randn(4, 16, WIDTH, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with model.no_sync():
                model(x).sum().backward()
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert moved_bytes(training_step(forecast)) == {("all_reduce", "backward"): BLOCK_BYTES}


def test_fully_sharded_gathers_and_scatters_each_block() -> None:
    from torch.distributed.fsdp import fully_shard

    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        model = nn.Sequential(Block(), Block()).cuda()
        for block in model:
            fully_shard(block)
        fully_shard(model)
        train(model)

    assert moved_bytes(training_step(forecast)) == {
        ("all_gather", "forward"): 2 * BLOCK_BYTES,
        ("all_gather", "backward"): 2 * BLOCK_BYTES,
        ("reduce_scatter", "backward"): 2 * BLOCK_BYTES,
    }


def test_a_split_layer_reduces_activations_once_each_way() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with neusight.forecast_on("H100", world_size=4) as forecast:
        join()
        mesh = init_device_mesh("cuda", (4,))
        model = nn.Sequential(Block(), Block()).cuda()
        for block in model:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        train(model)

    activations = 4 * 4 * 16 * WIDTH
    assert moved_bytes(training_step(forecast)) == {
        ("all_reduce", "forward"): 2 * activations,
        ("all_reduce", "backward"): activations,  # the input needs no gradient
    }
    assert not forecast.recording.warnings


@pytest.mark.parametrize("rank", [0, 3])
def test_a_split_sequence_is_gathered_before_each_layer_and_scattered_behind(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    with neusight.forecast_on("H100", world_size=4, rank=rank) as forecast:
        join()
        mesh = init_device_mesh("cuda", (4,))
        norm, block = nn.RMSNorm(WIDTH).cuda(), Block().cuda()
        parallelize_module(norm, mesh, SequenceParallel())
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, plan)
        x = torch.randn(4, 4, WIDTH, device="cuda", requires_grad=True)  # of 16 positions
        optimizer = torch.optim.SGD([*norm.parameters(), *block.parameters()], lr=0.1)
        for _ in range(3):
            block(norm(x).to_local()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    activations = 4 * 4 * 16 * WIDTH
    moved = moved_bytes(training_step(forecast))
    for kind in ("all_gather", "reduce_scatter"):
        assert moved[kind, "forward"] == moved[kind, "backward"] == activations


def test_sharded_statistics_of_batch_norm_are_shared() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
        model = nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda()
        for _ in range(2):
            model(torch.randn(4, 3, 8, 8, device="cuda")).sum().backward()

    names = [call.signature.op for call in communication(forecast.recording.steps[-1])]
    assert names.count("c10d::_allgather_base_") == 1
    assert names.count("c10d::allreduce_") == 1


def test_an_exchange_between_experts_moves_every_share() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        tokens = torch.randn(8 * 16, WIDTH, device="cuda")
        shares = torch.empty_like(tokens)
        dist.all_to_all_single(shares, tokens)

    assert moved_bytes(forecast.recording.steps[-1]) == {
        ("all_to_all", "forward"): 4 * 8 * 16 * WIDTH
    }


def test_sends_and_receives_that_are_batched_are_one_kernel() -> None:
    with neusight.forecast_on("H100", world_size=4, rank=1) as forecast:
        join()
        x, y = (torch.randn(1024, device="cuda") for _ in range(2))
        transfers = [dist.P2POp(dist.isend, x, 2), dist.P2POp(dist.irecv, y, 0)]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        y.relu_()

    (call,) = communication(forecast.recording.steps[-1])
    assert call.signature.op == "_c10d_functional::batch_p2p_ops"
    assert call.signature.by_name["peer_list"] == (2, 0)
    assert moved_bytes(forecast.recording.steps[-1]) == {("send_recv", "forward"): 4096}


@pytest.mark.parametrize(("rank", "source"), [(0, 1), (1, 0), (2, 0)])
def test_what_is_received_from_anyone_comes_from_the_first_of_the_others(
    rank: int, source: int
) -> None:
    with neusight.forecast_on("H100", world_size=3, rank=rank):
        join()
        received = torch.empty(8, device="cuda")

        assert dist.recv(received) == source


def test_the_host_waits_at_a_barrier() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        torch.randn(8, device="cuda")
        dist.barrier()

    [call] = communication(forecast.recording.steps[-1])
    assert call.signature.op == "c10d::barrier"
    assert call.signature.input_tensors[0].shape == (1,)


def test_a_functional_collective_may_write_into_what_it_is_given() -> None:
    with neusight.forecast_on("H100", world_size=2) as forecast:
        join()
        assert dist.group.WORLD is not None
        x, out = torch.ones(8, device="cuda"), torch.empty(16, device="cuda")
        torch.ops._c10d_functional.all_gather_into_tensor_out(
            x, 2, dist.group.WORLD.group_name, out=out
        )

    [call] = communication(forecast.recording.steps[-1])
    assert call.signature.tensor("out").shape == (16,)
    assert call.signature.tensor("input").shape == (8,)


@pytest.mark.slow
def test_what_is_recorded_and_kept_does_not_depend_on_the_world() -> None:
    from torch.distributed.fsdp import fully_shard

    def recorded(world_size: int) -> tuple[list[str], int, int]:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with neusight.forecast_on("H100", world_size=world_size) as forecast:
            join()
            model = Block(1024).cuda()
            fully_shard(model)
            train(model, steps=2, width=1024)
        step = training_step(forecast)
        _, peak = tracemalloc.get_traced_memory()
        ops = [call.signature.op for call in communication(step)]
        return ops, len(step.entries), peak - before

    tracemalloc.start()
    try:
        recorded(8)  # imports what is needed
        ops, entries, peaks = zip(*map(recorded, (8, 64, 1024)), strict=True)
    finally:
        tracemalloc.stop()

    assert list(ops) == [["c10d::_allgather_base_", "c10d::_reduce_scatter_base_"]] * 3
    assert len(set(entries)) == 1
    assert max(peaks) - min(peaks) < 10 * 2**20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_ranks_fuse_and_reduce_the_same() -> None:
    from torch.distributed.fsdp import fully_shard

    compile_: Any = torch.compile
    with neusight.forecast_on("H100", world_size=8) as replicated:
        join()
        model = nn.Sequential(Block(256), Block(256)).cuda()
        parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)  # several buckets
        train(compile_(parallel), width=256)
    with neusight.forecast_on("H100", world_size=8) as sharded:
        join()
        model = nn.Sequential(Block(), Block()).cuda()
        for block in model:
            block.compile()
            fully_shard(block)
        fully_shard(model)
        train(model)

    num_bytes = sum(4 * parameter.numel() for parameter in Block(256).parameters())
    assert moved_bytes(training_step(replicated)) == {("all_reduce", "backward"): 2 * num_bytes}
    assert moved_bytes(training_step(sharded))["reduce_scatter", "backward"] == 2 * BLOCK_BYTES
    for forecast in (replicated, sharded):
        ops = [e.signature.op for e in training_step(forecast).entries if isinstance(e, OpCall)]
        assert any(op.startswith("inductor::triton_") for op in ops)
        assert not forecast.recording.warnings
        assert not [stop for frame in forecast.recording.compiled for stop in frame.breaks]

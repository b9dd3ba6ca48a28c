"""Several GPUs, or what is written for them and runs on one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from covered.habit_programs.habit import batch, habit, net, train


@contextmanager
def _group(backend: str = "nccl") -> Iterator[None]:
    """A process group of this process alone."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29611", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
    )
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


@habit(is_sampled=True)
def collectives_and_ddp_of_one() -> None:
    with _group():
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        dist.barrier()
        gathered = [torch.empty_like(x)]
        dist.all_gather(gathered, x)
        dist.broadcast(x, 0)
        dist.all_reduce(x, async_op=True).wait()
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        assert objects == [{"a": 1}] and dist.get_world_size() == 1
        model = nn.parallel.DistributedDataParallel(net().cuda(), device_ids=[0])
        with model.no_sync():
            model(batch()).sum().backward()
        train(model)
        sampler = torch.utils.data.DistributedSampler(range(8))
        sampler.set_epoch(1)
        assert len(list(sampler)) == 8


@habit()
def fsdp2_of_one() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with _group("cpu:gloo,cuda:nccl"):
        mesh = init_device_mesh("cuda", (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model = net().cuda()
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        train(model)


@habit()
def fsdp1_of_one() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with _group():
        train(FullyShardedDataParallel(net().cuda(), device_id=0))


@habit()
def tensor_parallel_of_one() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with _group():
        mesh = init_device_mesh("cuda", (1,))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        train(parallelize_module(net().cuda(), mesh, plan))


@habit()
def zero_optimizer_of_one() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with _group():
        model = net().cuda()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
        train(model, optimizer=optimizer)


@habit()
def synchronized_batch_norm() -> None:
    with _group():
        model = nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        train(nn.parallel.DistributedDataParallel(model, device_ids=[0]))


@habit()
def data_parallel() -> None:
    model = nn.DataParallel(net().cuda())
    train(model)
    assert next(iter(model.state_dict())) == "module.0.weight"


@habit()
def guarded_by_is_initialized() -> None:
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    assert rank == 0 and int(os.environ.get("WORLD_SIZE", 1)) == 1
    assert dist.is_nccl_available() in (True, False)
    train(net().cuda())

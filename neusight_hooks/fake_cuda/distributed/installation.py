"""torch.distributed inside a forecast."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from neusight.fake_cuda.distributed.collectives import collective_handlers
from neusight.fake_cuda.distributed.communication import Communication
from neusight.fake_cuda.distributed.groups import Backends, Groups
from neusight.fake_cuda.distributed.objects import Objects, install_objects
from neusight.fake_cuda.distributed.peers.cpu_tensors import CpuBatches, cpu_handlers
from neusight.fake_cuda.distributed.peers.link import Link, SingleRankLink
from neusight.fake_cuda.distributed.peers.waiting_time import (
    DEFAULT_WAIT_S,
    WaitingTime,
    install_waiting_time,
)
from neusight.fake_cuda.distributed.process_groups import (
    install_environment,
    install_process_groups,
)
from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.distributed.spawning import install_spawning
from neusight.fake_cuda.distributed.wrappers.caches import install_caches
from neusight.fake_cuda.distributed.wrappers.checkpoints import install_sharded_checkpoints
from neusight.fake_cuda.distributed.wrappers.refusals import install_refusals
from neusight.fake_cuda.distributed.wrappers.replicas import install_replicas
from neusight.fake_cuda.distributed.wrappers.shards import install_shards
from neusight.fake_cuda.distributed.wrappers.symmetric_memory import install_symmetric_memory
from neusight.fake_cuda.patching import Patches
from neusight.predictors.gpu import GPU
from neusight.recording.recorder import Recorder
from neusight.recording.recording import RANK_OPTION


def install_distributed(
    patches: Patches,
    recorder: Recorder,
    gpu: GPU,
    on_query: Callable[[str, object], None],
    rank: Rank | None,
    link: Link | None = None,
    wait_s: float = DEFAULT_WAIT_S,
    *,
    virtual_time: bool = False,
) -> None:
    """The program is this rank; None: that of the group that is open already, else it is alone.
    `link` leads to the ranks that run beside it, if any do. What waits for others in vain is
    an error after `wait_s`."""
    own = rank or _rank_of_open_group() or Rank()
    recorder.devices.count = own.local_world_size
    if own.world_size > 1:
        recorder.options[RANK_OPTION] = (
            f"rank {own.index} of {own.world_size}, {own.local_world_size} a node"
        )
    if rank is not None:
        install_environment(patches, rank)
    link = link or SingleRankLink(own.index)
    backends = Backends()
    communication = Communication(
        recorder, Groups(own, gpu, on_query), link.require_rank, backends.name_of
    )
    objects = Objects(communication, link)
    recorder.handlers.update(collective_handlers(communication))
    batches = CpuBatches()
    recorder.cpu_handlers.update(cpu_handlers(objects, batches, backends.require_cpu))
    install_process_groups(
        patches, communication, own, objects, link, batches, backends, is_stated=rank is not None
    )
    install_objects(patches, objects)
    install_replicas(patches)
    install_sharded_checkpoints(patches, recorder.warn_once)
    install_shards(patches)
    install_refusals(patches)
    install_caches(patches)
    install_spawning(patches, own)
    install_symmetric_memory(patches, recorder)
    if own.world_size > 1:
        waiting = WaitingTime(recorder.tape, own.index, wait_s)
        on_sleep = recorder.on_sleep if virtual_time else None
        install_waiting_time(patches, link, waiting, on_sleep)


def _rank_of_open_group() -> Rank | None:
    if not dist.is_initialized():
        return None
    world_size = dist.get_world_size()
    return Rank(dist.get_rank(), world_size, world_size)  # the number of hosts is not stated

"""How a program becomes one of many: environment, rendezvous, process groups of any backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import device_mesh
from torch.testing._internal.distributed import fake_pg  # registers the backend "fake"

from neusight.fake_cuda.distributed.communication import Communication
from neusight.fake_cuda.distributed.groups import FAKE_BACKEND, Backends
from neusight.fake_cuda.distributed.objects import Objects
from neusight.fake_cuda.distributed.peers.cpu_tensors import CpuBatches
from neusight.fake_cuda.distributed.peers.key_store import KeyStore, key_store_classes
from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import OptionError
from neusight.recording.call_stack import call_site

#: What a CUDA build of torch 2.13 has: NCCL 2.27.7, as torch._C._nccl_version() packs it.
_NCCL_VERSION = (2 << 32) | (27 << 16) | 7

#: After which NCCL gives a collective up, where it is not stated (torch 2.13: ten minutes).
_NCCL_TIMEOUT = timedelta(minutes=10)

assert fake_pg is not None


def install_environment(patches: Patches, rank: Rank) -> None:
    """The variables that torchrun would have set."""
    for name, value in rank.environment().items():
        patches.put(os.environ, name, value)


def install_process_groups(
    patches: Patches,
    communication: Communication,
    rank: Rank,
    objects: Objects,
    link: Link,
    batches: CpuBatches,
    backends: Backends,
    *,
    is_stated: bool,
) -> None:
    """From here on process groups of any backend are there, and only ranks that run are waited
    for."""
    stores = _Stores(link)
    _install_rendezvous(patches, rank, stores, is_stated=is_stated)
    _install_groups(patches, communication, backends, stores)
    _install_nccl(patches)
    _install_barrier(patches, communication, backends, objects)
    _install_batches(patches, communication, batches)


class _Stores:
    """The stores that torch holds in C++, where nothing keeps their Python side alive."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._kept: list[KeyStore] = []
        self.classes = key_store_classes(link)

    def make(self, name: str) -> KeyStore:
        store = KeyStore(self._link, name)
        self._kept.append(store)
        return store


def _install_rendezvous(patches: Patches, rank: Rank, stores: _Stores, *, is_stated: bool) -> None:
    real_init = c10d.init_process_group

    def rendezvous(url: str, *given: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        yield stores.make(""), rank.index, rank.world_size

    def init_process_group(
        backend: Any = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank_given: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("rank", None)  # this process is the only rank
        _check_size(rank, world_size, is_stated=is_stated)
        if not is_stated and world_size != 1 and "RANK" not in os.environ:
            raise OptionError(
                f"{call_site()} joins other processes, but their number is not stated: say "
                "--world-size, forecast_on(..., world_size=...) or torchrun's variables"
            )
        first = stores.make("")
        real_init(backend, None, timeout, rank.world_size, rank.index, first, *args, **kwargs)

    for module in (c10d, dist):
        patches.set(module, "init_process_group", init_process_group)
        for name, store_class in stores.classes.items():
            patches.set(module, name, store_class)
    patches.set(c10d, "rendezvous", rendezvous)
    patches.on_restore(partial(_leave_groups, set(c10d._world.pg_map)))


def _check_size(rank: Rank, world_size: int, *, is_stated: bool) -> None:
    """OptionError where the program says another world than it is run in."""
    if world_size in (-1, None) or world_size == rank.world_size:
        return
    if is_stated:
        raise OptionError(
            f"{call_site()} asks for {world_size} ranks, but the world size is {rank.world_size}; "
            f"say --world-size {world_size}, or let the script ask the environment"
        )
    raise OptionError(f"{call_site()} asks for {world_size} ranks; say --world-size {world_size}")


def _leave_groups(before: Set[Any]) -> None:
    """Ends the groups that the program made; those that were there before stay."""
    made: list[Any] = [group for group in c10d._world.pg_map if group not in before]
    if c10d.GroupMember.WORLD in made:
        made = [None]  # all
    for group in made:
        dist.destroy_process_group(group)


def _install_groups(
    patches: Patches, communication: Communication, backends: Backends, stores: _Stores
) -> None:
    make_group = c10d._new_process_group_helper
    real_get_backend = c10d.get_backend

    def new_process_group_helper(
        group_size: int,
        group_rank: int,
        ranks: Any,
        backend: Any,
        store: Any,
        group_name: Any,
        backend_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        device = kwargs.pop("device_id", None)
        if not ranks:  # the group of all, whose GPU other groups have too
            communication.bound_device = device
        own = stores.make(f"group {group_name}")
        made = make_group(
            group_size, group_rank, ranks, FAKE_BACKEND, own, group_name, None, **kwargs
        )
        group = made[0]
        if group is not None and group is not c10d.GroupMember.NON_GROUP_MEMBER:
            backends.note(group, backend)
            if getattr(backend_options, "is_high_priority_stream", False):
                communication.put_first(group)
        return made

    def get_backend(group: Any = None) -> Any:
        real_get_backend(group)  # which refuses what is no group
        return dist.Backend(backends.name_of(group or c10d._get_default_group()))

    patches.set(c10d, "_new_process_group_helper", new_process_group_helper)
    for module in (c10d, dist, device_mesh):
        patches.set(module, "get_backend", get_backend)


class _NcclOptions:
    """ProcessGroupNCCL.Options: what a program may set of it has no effect on a forecast."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self._timeout: Any = None


class _ProcessGroupNCCL:
    """Stands for the class that a CPU build does not have."""

    Options = _NcclOptions


def _install_nccl(patches: Patches) -> None:
    for module in (c10d, dist):
        patches.set(module, "is_nccl_available", lambda: True)
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.set(module, "ProcessGroupNCCL", _ProcessGroupNCCL)
    absent: dict[str, Callable[[], object]] = {
        "_nccl_version": lambda: _NCCL_VERSION,
        "_nccl_version_suffix": lambda: b"",
    }
    for name, answer in absent.items():
        if not hasattr(torch._C, name):
            patches.set(torch._C, name, answer)
    if getattr(c10d, "default_pg_nccl_timeout", None) is None:
        patches.set(c10d, "default_pg_nccl_timeout", _NCCL_TIMEOUT)


def _install_barrier(
    patches: Patches, communication: Communication, backends: Backends, objects: Objects
) -> None:
    real_barrier = c10d.barrier

    def barrier(
        group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
    ) -> Any:
        whose = group or c10d._get_default_group()
        if not c10d._rank_not_in_group(whose):
            objects.require_all(whose)
        if c10d._rank_not_in_group(whose) or backends.name_of(whose) != "nccl":
            return real_barrier(group, async_op=async_op)
        # Torch's own takes place on the CPU where a group has a backend for it.
        recorder = communication.recorder
        one = recorder.mode.new_tensor(
            (1,), (1,), torch.uint8, torch.device("cuda", recorder.devices.current)
        )
        work = torch.ops.c10d.barrier(one, whose.boxed(), [], async_op)
        return work if async_op else None

    for module in (c10d, dist):
        patches.set(module, "barrier", barrier)


def _install_batches(patches: Patches, communication: Communication, batches: CpuBatches) -> None:
    """Calls between the begin and the end of a group become one kernel."""
    from torch._C._distributed_c10d import FakeProcessGroup

    def start(group: Any, device: Any = None) -> None:
        batches.begin()
        communication.begin_batch(group)

    def end(group: Any, device: Any = None) -> Any:
        return batches.end(communication.end_batch())

    # Else a batch of sends and receives takes the way of gloo, one after the other.
    patches.set(FakeProcessGroup, "supports_coalescing", True)
    patches.set(dist.ProcessGroup, "_start_coalescing", start)
    patches.set(dist.ProcessGroup, "_end_coalescing", end)

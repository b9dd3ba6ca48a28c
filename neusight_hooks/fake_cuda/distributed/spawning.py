"""Programs that start their own ranks: the function runs once, as the rank that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.multiprocessing

from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.patching import Patches

__all__ = ["install_spawning"]


class _Ended:
    """What spawn returns where it is not to wait: the processes are done."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Whether all have ended, which they have."""
        return True

    def pids(self) -> list[int]:
        """Those of the processes: there are none."""
        return []


def install_spawning(patches: Patches, rank: Rank) -> None:
    """torch.multiprocessing.spawn calls its function here, with this rank's number on its host."""

    def spawn(
        fn: Callable[..., object],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> _Ended | None:
        fn(min(rank.local_index, nprocs - 1), *args)
        return None if join else _Ended()

    for name in ("spawn", "start_processes"):
        patches.set(torch.multiprocessing, name, spawn)

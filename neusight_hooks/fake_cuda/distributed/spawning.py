"""Programs that start their own ranks: the function runs once, as the rank that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import OptionError
from neusight.recording.call_stack import call_site


class _Ended:
    """What spawn returns where it is not to wait: the processes are done."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
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
    when_imported(
        patches,
        "torch.distributed.launcher.api",
        lambda module: patches.set(module, "launch_agent", _agent(rank)),
    )
    if rank.world_size > 1:
        patches.set(torch.multiprocessing, "Process", _processes(rank, torch.multiprocessing))


def _agent(rank: Rank) -> Callable[..., dict[int, object]]:
    """What elastic_launch calls: the function runs once, and what it returns is this rank's."""

    def launch_agent(
        config: object, entrypoint: Any, args: Sequence[Any] = (), *others: object, **named: object
    ) -> dict[int, object]:
        if not callable(entrypoint):
            raise OptionError(
                f"{call_site()} starts {entrypoint} by torchrun; say `neusight run torchrun …` "
                "itself, or --world-size and that script"
            )
        return {rank.index: entrypoint(*args)}

    return launch_agent


def _processes(rank: Rank, module: Any) -> Any:
    """A Process for module.Process: one that is to be a rank of its own runs here if it is this
    one, else not at all. Others (workers of a DataLoader) start as ever."""
    real = module.Process

    def process(*arguments: Any, **options: Any) -> Any:
        target = options.get("target") or (arguments[1] if len(arguments) > 1 else None)
        args = tuple(options.get("args") or ())
        is_rank = (
            args
            and type(args[0]) is int
            and 0 <= args[0] < rank.local_world_size
            and not dist.is_initialized()
            and not str(getattr(target, "__module__", "")).startswith("torch.")
        )
        if target is None or not is_rank:
            return real(*arguments, **options)
        if args[0] != rank.local_index:
            return _Started(lambda: None)
        return _Started(lambda: target(*args, **(options.get("kwargs") or {})))

    return process


class _Started:
    """A process that runs where it is started, and has ended then."""

    name, daemon, pid, exitcode = "rank", False, 0, 0

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def start(self) -> None:
        self._run()

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""

    def is_alive(self) -> bool:
        return False

    def terminate(self) -> None:
        """There is nothing to end."""

    kill = close = terminate

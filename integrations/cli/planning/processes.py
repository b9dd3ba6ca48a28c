"""The same work on many items at once: forked processes of this machine, or Ray's of several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.forking import text_of_end
from neusight.integrations.program.guard.guarded_process import Terminated, ending_on_sigterm
from neusight.predictors.errors import OptionError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds that a process gets to clean up when it is no longer wanted.
_END_TIMEOUT_S = 5.0

#: Seconds after which a wait looks up.
_MOMENT_S = 0.5


@dataclass(frozen=True)
class LostWorker:
    """What became of a process that ended without a result."""

    failure: str


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_processes(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    at_once: int,
    while_waiting: Callable[[], object] = lambda: None,
) -> Generator[tuple[int, Result | LostWorker], None, None]:
    """(position, result) of each item as it ends, `at_once` forked from this process at a time:
    what is loaded here is loaded there. Left early, the others are ended. `while_waiting` is called
    every moment."""
    waiting = deque(range(len(items)))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                position = waiting.popleft()
                receiver, process = _started(work, items[position])
                running[receiver] = position, process
            for ready in wait(list(running), _MOMENT_S):
                assert isinstance(ready, Connection)
                position, process = running.pop(ready)
                yield position, _result_of(ready, process)
            while_waiting()
    finally:
        _end(running)


def _started(work: Callable[[Item], Any], item: Item) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_be_child, args=(work, item, sender))
    with warnings.catch_warnings():
        # Python warns where there are threads: those of OpenBLAS, which stops them itself before a
        # fork and starts them again after it.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sender.close()
    return receiver, process


def _be_child(work: Callable[[Item], Any], item: Item, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process above, which ends this
    try:
        with ending_on_sigterm():
            sender.send(work(item))
    except (Terminated, KeyboardInterrupt):
        os._exit(ExitCode.TERMINATED)


def _result_of(receiver: Connection, process: BaseProcess) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return LostWorker(text_of_end(process.exitcode or 0)[0])
    finally:
        receiver.close()
        process.join()


def _end(running: dict[Connection, tuple[int, BaseProcess]]) -> None:
    for receiver, (_, process) in running.items():
        receiver.close()
        process.terminate()
    for _, process in running.values():
        process.join(_END_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()


def on_ray(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    address: str,
    while_waiting: Callable[[], object] = lambda: None,
) -> Generator[tuple[int, Result | LostWorker], None, None]:
    """(position, result) of each item as it ends, on the machines of the Ray cluster at `address`
    ("auto": the one that this machine belongs to; "local": this machine alone). OptionError without
    Ray, or where no cluster answers there."""
    try:
        import ray
    except ImportError as error:
        raise OptionError("--ray needs Ray: pip install 'neusight-hooks[ray]'") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise OptionError(f"no Ray cluster answers at {address!r}: {error}") from error
    try:
        remote = ray.remote(_done)
        positions = {remote.remote(work, item): position for position, item in enumerate(items)}
        while positions:
            ended, _ = ray.wait(list(positions), num_returns=1, timeout=_MOMENT_S)
            while_waiting()
            if not ended:
                continue
            [done] = ended
            position = positions.pop(done)
            try:
                yield position, ray.get(done)
            except ray.exceptions.RayError as error:
                yield position, LostWorker(str(error).strip().splitlines()[-1])
    finally:
        ray.shutdown()


def _done(work: Callable[[Item], Result], item: Item) -> Result:
    return work(item)

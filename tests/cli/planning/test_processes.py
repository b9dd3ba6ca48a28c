"""The same work on many items: results as they end, and what becomes of those that do not."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.integrations.cli.planning.processes import LostWorker, in_processes, num_cores, on_ray
from neusight.predictors.errors import OptionError


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", {0: {3, 5}}.__getitem__)

    assert num_cores() == 2


def test_each_item_has_its_result() -> None:
    done = dict(in_processes(lambda item: item * item, [3, 4, 5], at_once=2))

    assert done == {0: 9, 1: 16, 2: 25}


def test_each_item_has_a_process_of_its_own() -> None:
    pids = {pid for _, pid in in_processes(lambda item: os.getpid(), range(3), at_once=3)}

    assert len(pids) == 3
    assert os.getpid() not in pids


def test_a_process_that_is_killed_is_lost_and_the_others_go_on() -> None:
    def work(item: int) -> int:
        if item == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    done = dict(in_processes(work, [0, 1], at_once=1))

    assert isinstance(done[0], LostWorker)
    assert done[0].failure.startswith("its process was killed by SIGKILL")
    assert done[1] == 1


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_ends_by_itself_is_lost_with_its_status(status: int) -> None:
    done = dict(in_processes(os._exit, [status], at_once=1))

    assert done == {0: LostWorker(f"it ended its process at once, with status {status} (os._exit)")}


def test_what_is_left_early_is_ended(tmp_path: Path) -> None:
    def work(item: int) -> int:
        if item == 0:
            while not (tmp_path / "pid").exists():  # the other one is there
                os.sched_yield()
            return 0
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "pid")
        signal.pause()
        return 1

    with closing(in_processes(work, [0, 1], at_once=2)) as done:
        first = next(done)

    assert first == (0, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_there_is_a_core() -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


# -- Ray -------------------------------------------------------------------------------------------


class RayError(Exception):
    """What Ray raises for a task that failed."""


class FakeRay:
    """As much of Ray as is called: tasks run here, the last one submitted ends first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.address = ""
        self.is_up = False

    def init(self, *, address: str, **others: object) -> None:
        if address == "nowhere:1":
            raise ConnectionError("no route")
        self.address, self.is_up = address, True

    def shutdown(self) -> None:
        self.is_up = False

    def remote(self, task: Callable[..., Any]) -> SimpleNamespace:
        assert inspect.isfunction(task)  # Ray takes nothing else that can be called
        return SimpleNamespace(remote=lambda *words: (task, words))

    def wait(
        self, tasks: Sequence[Any], *, num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1
        return [tasks[-1]], list(tasks[:-1])

    def get(self, submitted: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        task, words = submitted
        try:
            return task(*words)
        except Exception as error:
            raise RayError(f"a long story\n{error}") from error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_rays_results_come_as_they_end(ray: FakeRay) -> None:
    done = list(on_ray(lambda item: item + 1, [1, 2, 3], address="auto"))

    assert done == [(2, 4), (1, 3), (0, 2)]
    assert (ray.address, ray.is_up) == ("auto", False)


def test_a_task_that_ray_lost_is_lost(ray: FakeRay) -> None:
    [(position, found)] = on_ray(lambda item: 1 // item, [0], address="auto")

    assert (position, found) == (0, LostWorker("integer division or modulo by zero"))


def test_ray_is_left_when_nobody_waits_any_more(ray: FakeRay) -> None:
    with closing(on_ray(lambda item: item, [1, 2], address="auto")) as done:
        next(done)

    assert not ray.is_up


def test_a_cluster_that_does_not_answer_is_named(ray: FakeRay) -> None:
    with pytest.raises(OptionError, match="no Ray cluster answers at 'nowhere:1'"):
        next(on_ray(lambda item: item, [1], address="nowhere:1"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(OptionError, match=r"pip install 'neusight-hooks\[ray\]'"):
        next(on_ray(lambda item: item, [1], address="auto"))


@pytest.mark.slow
def test_ray_itself_does_the_same() -> None:
    pytest.importorskip("ray")

    assert sorted(on_ray(abs, [-1, -2], address="local")) == [(0, 1), (1, 2)]

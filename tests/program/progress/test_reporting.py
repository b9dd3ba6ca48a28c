"""A long recording says how far it is: in a line on a terminal, else in one a minute."""

from __future__ import annotations

import builtins
import os
import pty
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.program.progress import reporting
from neusight.integrations.program.progress.reporting import (
    ReportInterval,
    progress_text,
    reporting_progress,
    reporting_work,
    seconds_as_text,
)
from terminal_screen import Screen, screen_of, settled_terminal


class Recording:
    progress = (12_345, 3)
    doing = ""


SESSION: Any = Recording()
#: No thread takes that long to write, however loaded the machine.
HANGS_AFTER_S = 900.0


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "REWRITTEN", ReportInterval(0.001, 0.001))
    monkeypatch.setattr(reporting, "KEPT", ReportInterval(0.001, HANGS_AFTER_S))


def test_it_is_reported_in_steps_ops_and_seconds() -> None:
    assert progress_text(SESSION, 12.3) == "neusight: step 4, 12,345 ops, 12 s"


def test_before_the_first_op_it_says_so() -> None:
    session: Any = Recording()
    session.progress = (0, 0)

    assert progress_text(session, 3) == ("neusight: the script has not reached the GPU yet, 3 s")


def test_while_something_is_compiled_it_says_what() -> None:
    session: Any = Recording()
    session.doing = "compiling graph 2, 1,548 nodes"

    assert progress_text(session, 70) == ("neusight: compiling graph 2, 1,548 nodes, 1 min 10 s")


@pytest.mark.usefixtures("at_once")
def test_a_terminal_sees_it_in_a_line_that_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    with settled_terminal(monkeypatch) as screen, reporting_progress(SESSION):
        assert screen.was_written.wait(HANGS_AFTER_S)
        assert threading.active_count() == before + 1  # the screen's own
        print("a line of the program's")

    assert "neusight: step 4, 12,345 ops, 0 s" in screen.written
    assert screen.lines == ["a line of the program's", ""]


@pytest.mark.usefixtures("at_once")
def test_a_log_gets_a_line_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = (tmp_path / "log").open("w")
    monkeypatch.setattr(sys, "stderr", log)

    with reporting_progress(SESSION):
        wait_until(lambda: (tmp_path / "log").read_text() != "")
    log.close()

    assert (tmp_path / "log").read_text() == "neusight: step 4, 12,345 ops, 0 s\n"


def wait_until(is_so: Callable[[], bool]) -> None:
    event = threading.Event()
    while not is_so():
        assert not event.wait(0.001)


@pytest.mark.parametrize("seconds", [59, 61])
def test_a_log_shows_it_after_a_minute(seconds: int) -> None:
    assert (reporting.KEPT.first_s, reporting.KEPT.then_s) == (60.0, 60.0)
    assert seconds_as_text(seconds) == {59: "59 s", 61: "1 min 1 s"}[seconds]


@pytest.mark.usefixtures("at_once")
def test_who_wants_quiet_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        settled_terminal(monkeypatch) as screen,
        reporting_progress(SESSION, quiet=True),
        reporting_work(lambda: "1 of 3 done", quiet=True) as show,
    ):
        show()

    assert screen.written == ""


def test_a_quick_recording_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen, reporting_progress(SESSION):
        pass

    assert screen.written == ""


@pytest.mark.usefixtures("at_once")
def test_it_ends_also_where_the_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = builtins.input
    with settled_terminal(monkeypatch) as screen:
        with pytest.raises(ZeroDivisionError), reporting_progress(SESSION):
            assert screen.was_written.wait(HANGS_AFTER_S)
            raise ZeroDivisionError
        print("after it")

    assert screen.lines == ["after it", ""]
    assert builtins.input is ask


@pytest.mark.usefixtures("at_once")
def test_a_process_that_the_program_forked_ends_as_it_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with settled_terminal(monkeypatch) as screen:
        with reporting_progress(SESSION):
            assert screen.was_written.wait(HANGS_AFTER_S)
            child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.usefixtures("at_once")
def test_what_the_program_asks_is_asked_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def ask(prompt: object = "", /) -> str:
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
        wait_until(lambda: screen.lines[-1].startswith("your name? "))
        seen.append(screen.lines)
        return "Ada"

    monkeypatch.setattr(builtins, "input", ask)
    with settled_terminal(monkeypatch) as screen, reporting_progress(SESSION):
        assert screen.was_written.wait(HANGS_AFTER_S)
        answer = input("your name? ")

    assert (answer, seen) == ("Ada", [["your name? "]])


@pytest.mark.usefixtures("at_once")
def test_work_elsewhere_is_reported_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen:
        with reporting_work(lambda: "1 of 3 done") as show:
            wait_until(lambda: show() or screen.was_written.is_set())
        print("all done")

    assert "neusight: 1 of 3 done, 0 s" in screen.written
    assert screen.lines == ["all done", ""]


LOOP = """
import sys, torch
x = torch.ones(8, device="cuda")
print("begun")
number = 0
while True:
    number += 1
    x = x + 1
    if number % 5000 == 0:
        print("op", number)
"""


@pytest.mark.slow
def test_the_command_shows_it_among_what_the_script_prints(tmp_path: Path) -> None:
    """On a terminal of its own, until Ctrl-C."""
    (tmp_path / "loop.py").write_text(LOOP)
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        words = [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "--steps", "all"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
        os.execve(sys.executable, [*words, "loop.py"], environment)
    screen = Screen(descriptor)

    wait_until(lambda: "ops, 2 s" in screen.written and "op 10000" in screen.written)
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    screen.wait_to_the_end()
    os.close(descriptor)

    assert os.waitstatus_to_exitcode(status) == 130
    lines = screen_of(screen.written)
    printed = [line for line in lines if line.startswith("op ")]
    assert printed == [f"op {5000 * number}" for number in range(1, len(printed) + 1)]
    assert lines[0] == "begun"
    assert not [line for line in lines if line.startswith("neusight: step")]
    assert max(map(len, screen_lines_of_progress(screen.written))) < 60


def screen_lines_of_progress(written: str) -> list[str]:
    return [part for part in written.replace("\x1b[K", "\r").split("\r") if " ops, " in part]

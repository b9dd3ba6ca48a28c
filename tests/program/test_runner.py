"""A long recording says how far it is, on a terminal only."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from neusight.integrations.program import runner
from neusight.integrations.program.runner import telling_progress


class Terminal(io.StringIO):
    """What is written to it, and when something was."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.was_written = threading.Event()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.was_written.set()
        return super().write(text)


class Recording:
    progress = (12_345, 3)
    doing = ""


SESSION: Any = Recording()
#: No thread takes that long to write, however loaded the machine.
HANGS_AFTER_S = 900.0


def test_a_terminal_is_told_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(runner, "FIRST_NOTICE_SECONDS", 0.001)

    with telling_progress(SESSION):
        assert terminal.was_written.wait(HANGS_AFTER_S)

    assert terminal.getvalue().startswith("neusight: 12,345 ops in 3 steps recorded; going on")
    assert [thread for thread in threading.enumerate() if "neusight" in thread.name] == []


def test_before_the_first_op_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, session = Terminal(), Recording()
    session.progress = (0, 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(runner, "FIRST_NOTICE_SECONDS", 0.001)

    with telling_progress(session):  # type: ignore[arg-type]
        assert terminal.was_written.wait(HANGS_AFTER_S)

    assert terminal.getvalue().startswith("neusight: the script has not reached the GPU yet")


def test_while_something_is_compiled_it_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, session = Terminal(), Recording()
    session.doing = "compiling graph 2, 1,548 nodes"
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(runner, "FIRST_NOTICE_SECONDS", 0.001)

    with telling_progress(session):  # type: ignore[arg-type]
        assert terminal.was_written.wait(HANGS_AFTER_S)

    assert terminal.getvalue().startswith("neusight: compiling graph 2, 1,548 nodes; going on")


@pytest.mark.parametrize(("quiet", "is_terminal"), [(True, True), (False, False)])
def test_nobody_else_is(quiet: bool, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(runner, "FIRST_NOTICE_SECONDS", 0.0)
    before = threading.active_count()

    with telling_progress(SESSION, quiet=quiet):
        assert threading.active_count() == before

    assert terminal.getvalue() == ""


def test_a_quick_recording_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with telling_progress(SESSION):
        pass

    assert terminal.getvalue() == ""


def test_it_ends_also_where_the_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())

    with pytest.raises(ZeroDivisionError), telling_progress(SESSION):
        raise ZeroDivisionError

    assert [thread for thread in threading.enumerate() if "neusight" in thread.name] == []

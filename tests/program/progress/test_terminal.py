"""A line at the foot of a terminal is rewritten, and never mixed with what else is printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.integrations.program.progress.terminal import Terminal, terminal_of
from neusight.integrations.program.standard_streams import settle_standard_streams
from terminal_screen import screen_of, settled_terminal

PRINTED = st.lists(
    st.one_of(st.none(), st.sampled_from(["loss 2.0\n", "half ", "\n", "10%\r", "", "é\n"])),
    max_size=20,
)


def terminal() -> Terminal:
    found = terminal_of(sys.stderr)
    assert found is not None
    return found


@given(parts=PRINTED)
def test_what_is_printed_is_what_is_seen(parts: list[str | None]) -> None:
    """None is where the line is rewritten."""
    with pytest.MonkeyPatch.context() as patch, settled_terminal(patch) as screen:
        for number, part in enumerate(parts):
            if part is None:
                terminal().show(f"step {number}, 14,000 ops, 12 s")
            else:
                (sys.stdout if number % 2 else sys.stderr).write(part)
                sys.stdout.flush()
                sys.stderr.flush()
        terminal().clear()

    alone = "".join(part for part in parts if part is not None).replace("\n", "\r\n")
    assert screen.lines == screen_of(alone)


def test_the_line_stands_alone_and_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen:
        print("starting")
        terminal().show("step 1, 14,000 ops, 12 s")
        terminal().show("step 2, 9 s")

    assert screen.lines == ["starting", "step 2, 9 s"]


def test_it_waits_until_a_line_of_the_programs_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen:
        print("downloading", end=" ", flush=True)
        terminal().show("step 1")
        print("done")
        terminal().show("step 2")

    assert screen.lines == ["downloading done", "step 2"]


@pytest.mark.parametrize("stated", [None, "30"])
def test_it_is_cut_to_the_width(stated: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch, columns=60) as screen:
        if stated is not None:
            monkeypatch.setenv("COLUMNS", stated)
        terminal().show("x" * 200)

    assert screen.lines == ["x" * (int(stated or 60) - 1)]


def test_another_process_that_prints_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen:
        terminal().show("step 1")
        child = os.fork()
        if child == 0:
            print("from the other one", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        terminal().show("step 2")

    assert screen.lines == ["from the other one", "step 2"]


def test_while_the_user_is_asked_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled_terminal(monkeypatch) as screen:
        terminal().show("step 1")
        with terminal().paused():
            terminal().show("step 2")
            seen = screen
        terminal().clear()

    assert seen.lines == [""]


@pytest.mark.parametrize("kind", [None, "dumb"])
def test_a_terminal_that_cannot_rewrite_has_none(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with settled_terminal(monkeypatch):
        is_there = terminal_of(sys.stderr) is not None
    with settled_terminal(monkeypatch):
        monkeypatch.setenv("TERM", kind) if kind else monkeypatch.delenv("TERM")
        unsettled = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
        monkeypatch.setattr(sys, "stderr", unsettled)
        settle_standard_streams()
        found = terminal_of(sys.stderr)
        unsettled.close()

    assert is_there
    assert found is None


def test_a_pipe_has_none() -> None:
    program = (
        "import sys\n"
        "from neusight.integrations.program.standard_streams import settle_standard_streams\n"
        "from neusight.integrations.program.progress.terminal import terminal_of\n"
        "settle_standard_streams()\n"
        "print(terminal_of(sys.stdout), terminal_of(sys.stderr))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "None None\n"

"""A profiler's window: what a program does between two moments, as a recording of its own."""

from __future__ import annotations

from collections.abc import Sequence

from neusight.recording.recording import Step, Synchronize
from neusight.recording.steps.writer import StepWriter
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import SingleEntry, Tape, TapeEntry


class Window:
    """Takes what is recorded from now on, whatever steps are cut off meanwhile.

    `last_event` is the number of the last event before.
    """

    def __init__(self, tape: Tape, storages: StorageWatch, last_event: int) -> None:
        self._tape = tape
        self._writer = StepWriter(storages, last_event=last_event, is_second=True)
        self._before: list[TapeEntry] = [*storages.alive()]
        self._parts: list[tuple[str, list[TapeEntry]]] = [("", [])]
        self._read_all()
        tape.followers.append(self._follow)

    def _follow(self, fresh: Sequence[SingleEntry]) -> None:
        self._parts[-1][1].extend(fresh)

    def _read_all(self) -> None:
        self._tape.position()  # what operators did is written
        self._tape.drain()

    def part_begins(self, name: str) -> None:
        """A part of this name begins, or ("") what is in none."""
        self._read_all()
        self._parts.append((name, []))

    def end(self) -> tuple[tuple[Step, ...], dict[int, str]]:
        """The parts as steps, equal ones in a row as one object, behind a step that allocates what
        was there before; the names of those that have one, by their numbers. At the end the host
        waits for the GPU."""
        self._read_all()
        self._tape.followers.remove(self._follow)
        self._parts.append(("", [Synchronize("synchronize")]))
        steps = [Step("setup", self._writer.write(self._before))]
        names: dict[int, str] = {}
        for name, taped in self._parts:
            if not taped:
                continue
            entries = self._writer.write(taped)
            step = Step("train", entries, operators=self._writer.operators)
            names[len(steps)] = name
            steps.append(steps[-1] if steps[-1] == step else step)
        return tuple(steps), {number: name for number, name in names.items() if name}

"""Where ranks meet: the calls that several take part in, and when each of them came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from neusight.predictors.clusters.placement import ranges_text
from neusight.predictors.errors import MismatchError
from neusight.recording.recording import OpCall
from neusight.timeline.ranks.groups import Part, parts_of


class Appointment(NamedTuple):
    """A part of a rank's call that others take part in: the `number`-th of its key on every one of
    them, at the program's line `site`. `ranks` are those that are run."""

    part: Part
    number: int
    rank: int
    ranks: tuple[int, ...]
    site: str

    def __str__(self) -> str:
        """What the rank does, where.

        >>> part = Part(("0", "0..7"), (0, 1), (), "all_reduce of 8 float32")
        >>> print(Appointment(part, 3, 0, (0, 1), "train.py:8"))
        all_reduce of 8 float32 at train.py:8
        """
        return f"{self.part.words} at {self.site or 'a line that was not recorded'}"

    @property
    def place(self) -> str:
        """The group and which of its calls it is, in words."""
        return f"process group {self.part.group!r}, call {self.number}"


class Meetings:
    """Ranks come to their appointments, each once; who has come waits there for the others.

    `ranks` are those that are run. One that is not is represented by those that are, so no rank
    waits for it.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._numbers: Counter[tuple[int, tuple[str, ...]]] = Counter()
        self._came: dict[tuple[tuple[str, ...], int], list[tuple[Appointment, int]]] = {}

    def appointments(self, call: OpCall, rank: int) -> tuple[Appointment, ...]:
        """With whom the rank's call, the next one that it makes, has to meet."""
        found: list[Appointment] = []
        for part in parts_of(call, rank):
            ranks = tuple(other for other in part.ranks if other in self._ranks)
            if len(ranks) < 2 or rank not in ranks:
                continue
            self._numbers[rank, part.key] += 1
            number = self._numbers[rank, part.key]
            site = call.stack[0] if call.stack else ""
            found.append(Appointment(part, number, rank, ranks, site))
        return tuple(found)

    def come(self, appointment: Appointment, now_ns: int) -> None:
        """The rank is there from now on."""
        key = (appointment.part.key, appointment.number)
        self._came.setdefault(key, []).append((appointment, now_ns))

    def complete_ns(self, appointment: Appointment) -> int | None:
        """When the last one came; None while one is missing, and where one of them came for
        something else than the others."""
        came = self._came.get((appointment.part.key, appointment.number), ())
        if len(came) < len(appointment.ranks) or len({one.part.what for one, _ in came}) > 1:
            return None
        return max(now_ns for _, now_ns in came)

    def mismatch(self) -> MismatchError | None:
        """The error of the first call for which ranks came that do not agree on it."""
        for came in self._came.values():
            if len({one.part.what for one, _ in came}) > 1:
                return _mismatch([one for one, _ in came])
        return None

    def missing(self, appointment: Appointment) -> list[int]:
        """Who has not come."""
        came = self._came.get((appointment.part.key, appointment.number), ())
        there = {other.rank for other, _ in came}
        return [rank for rank in appointment.ranks if rank not in there]


def _mismatch(came: list[Appointment]) -> MismatchError:
    ranks: dict[str, list[int]] = {}
    for one in sorted(came, key=lambda found: found.rank):
        ranks.setdefault(str(one), []).append(one.rank)
    calls = [
        f"{rank_text(callers)} {'call' if len(callers) > 1 else 'calls'} {call}"
        for call, callers in ranks.items()
    ]
    missing = sorted(set(came[0].ranks) - {one.rank for one in came})
    if missing:
        calls.append(f"{rank_text(missing)} did not come to it")
    return MismatchError(
        f"{came[0].place}: {', '.join(calls)}. All its ranks must make the same calls in the same "
        "order; a cluster would hang here, or mix up the data."
    )


def rank_text(ranks: Collection[int]) -> str:
    """Ranks with the word before them.

    >>> rank_text([0, 1, 2, 5])
    'ranks 0..2,5'
    """
    return f"rank{'s' * (len(ranks) > 1)} {ranges_text(ranks)}"

"""What ranks that run side by side give each other: letters in mailboxes, and keys of a store."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from neusight.fake_cuda.distributed.rank import ranks_text

__all__ = ["NAME_END", "Answer", "EndKind", "Exchange", "Keys", "Letters", "Mailbox", "Wanted"]

#: Ends the name of a store before a key of it.
NAME_END = "\n"

#: How a rank ended: by itself, or by neusight because its steps were steady.
EndKind = Literal["well", "early"]


class Mailbox(NamedTuple):
    """Where a rank leaves letters: `what` they are in words, the group, who writes, and to whom
    (None: to all of the group, each of whom reads each letter)."""

    what: str
    group: str
    source: int
    target: int | None = None
    tag: int = 0


class Letters(NamedTuple):
    """One letter of each of these mailboxes; with `is_any` of the first that has one. Where
    `may_be_missing`, those of ranks that are not run are done without."""

    mailboxes: tuple[Mailbox, ...]
    is_any: bool = False
    may_be_missing: bool = False


class Keys(NamedTuple):
    """All of these keys of a store."""

    keys: tuple[str, ...]


#: What a rank may wait for.
Wanted = Letters | Keys


class Answer(NamedTuple):
    """What a rank gets: "value", or why it gets none: "stop" where it is to end as one that was
    stopped early, "interrupt" after Ctrl-C, "unanswered" or (where several wait for each other)
    "hang" with the reason in words."""

    kind: Literal["value", "stop", "interrupt", "unanswered", "hang"]
    value: Any = None


class _Waiting(NamedTuple):
    """A rank that waits, and the program's line there."""

    wanted: Wanted
    site: str


@dataclass
class _Box:
    """The letters of a mailbox that somebody may still read, by number."""

    letters: dict[int, bytes] = field(default_factory=dict)
    num_posted: int = 0
    num_read: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class Exchange:
    """Knows who runs, who waits for what, and answers as soon as it can.

    `start` makes a rank run that another one needs, and `reserve` where nobody can go on without
    it; without `start` the ranks are those that were begun, and all others are done without. Who
    waits is answered through `answers`, which is to be emptied after each call. What is answered
    does not depend on who is quicker: that a rank is not run counts only once nobody can go on.
    """

    def __init__(
        self, start: Callable[[int], None] | None = None, reserve: int | None = None
    ) -> None:
        #: What waiting ranks are to be told by now.
        self.answers: list[tuple[int, Answer]] = []
        self._start = start
        self._reserve = reserve
        self._is_interrupted = False
        self._live: set[int] = set()
        self._ended: dict[int, EndKind] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._boxes: dict[Mailbox, _Box] = defaultdict(_Box)
        self._store: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = defaultdict(deque)

    # -- who runs ---------------------------------------------------------------------------------

    @property
    def run(self) -> frozenset[int]:
        """The ranks that run or have run."""
        return frozenset(self._live | self._ended.keys())

    def begin(self, rank: int) -> None:
        """A rank runs from now on; those that are stated begin before any of them asks."""
        self._live.add(rank)

    def end(self, rank: int, kind: EndKind) -> None:
        """It has ended."""
        self._live.discard(rank)
        self._waiting.pop(rank, None)
        self._ended[rank] = kind
        self._answer_waiting()

    def meet(self, rank: int) -> None:
        """A rank exchanges something with this one, which so must run."""
        if self._start is not None and rank not in self.run:
            self._start(rank)

    def interrupt(self) -> None:
        """Ctrl-C: nobody waits from now on."""
        self._is_interrupted = True
        self._answer_waiting()

    # -- letters ----------------------------------------------------------------------------------

    def post(self, letters: Sequence[tuple[Mailbox, bytes]]) -> None:
        """Leaves a letter in each of the mailboxes."""
        for mailbox, data in letters:
            if mailbox.target is not None:
                self.meet(mailbox.target)
                if mailbox.target not in self.run:
                    continue
            box = self._boxes[mailbox]
            box.letters[box.num_posted] = data
            box.num_posted += 1
        self._answer_waiting()

    def want(self, rank: int, wanted: Wanted, site: str) -> None:
        """A rank waits for something; the answer may be there at once."""
        if isinstance(wanted, Letters) and not wanted.may_be_missing and not wanted.is_any:
            for mailbox in wanted.mailboxes:
                self.meet(mailbox.source)
        self._waiting[rank] = _Waiting(wanted, site)
        self._answer_waiting()

    def give_up(self, rank: int, limit_s: float) -> None:
        """A rank has waited for too long."""
        waiting = self._waiting.pop(rank)
        self._tell(
            rank,
            Answer(
                "unanswered",
                f"{_words(rank, waiting)}, but nobody answered within {limit_s:g} s (--wait)",
            ),
        )
        self._answer_waiting()

    @property
    def waiting_for_keys(self) -> Iterable[int]:
        """The ranks that wait for keys, which nobody is known to set."""
        return [rank for rank, waiting in self._waiting.items() if isinstance(waiting.wanted, Keys)]

    # -- the store --------------------------------------------------------------------------------

    def set(self, key: str, value: bytes) -> None:
        """A key has this value from now on."""
        self._store[key] = value
        self._answer_waiting()

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets the key where it has the expected value, or where there is none and none is
        expected; what it has then."""
        found = self._store.get(key)
        if found == expected or (found is None and not expected):
            self.set(key, desired)
            return desired
        return expected if found is None else found

    def add(self, key: str, amount: int) -> int:
        """Counts a key up; what it is then."""
        total = int(self._store.get(key, b"0")) + amount
        self.set(key, str(total).encode())
        return total

    def append(self, key: str, value: bytes) -> None:
        """Puts more behind what a key has."""
        self.set(key, self._store.get(key, b"") + value)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of them are there."""
        return all(key in self._store for key in keys)

    def values(self, keys: Sequence[str]) -> list[bytes]:
        """What they have; all are there."""
        return [self._store[key] for key in keys]

    def delete(self, key: str) -> bool:
        """Removes a key; whether it was there."""
        return self._store.pop(key, None) is not None

    def list_keys(self, prefix: str) -> list[str]:
        """The keys that begin so."""
        return sorted(key for key in self._store if key.startswith(prefix))

    # -- answering --------------------------------------------------------------------------------

    def _answer_waiting(self) -> None:
        """Tells all who can be told; where nobody can go on, those who are to do without."""
        if self._is_interrupted:
            for rank in self._waiting:
                self._tell(rank, Answer("interrupt"))
            self._waiting.clear()
        self._answer_ready()
        while self._waiting and self._live and self._live <= self._waiting.keys():
            if self._do_without():
                self._answer_ready()
                continue
            self._end_all()

    def _answer_ready(self) -> None:
        for rank, waiting in list(self._waiting.items()):
            answer = self._answer_to(rank, waiting)
            if answer is not None:
                del self._waiting[rank]
                self._tell(rank, answer)

    def _tell(self, rank: int, answer: Answer) -> None:
        self.answers.append((rank, answer))

    def _answer_to(self, rank: int, waiting: _Waiting) -> Answer | None:
        wanted = waiting.wanted
        if isinstance(wanted, Keys):
            return Answer("value", self.values(wanted.keys)) if self.check(wanted.keys) else None
        there = [mailbox for mailbox in wanted.mailboxes if self._has_letter(mailbox, rank)]
        if wanted.is_any:
            return Answer("value", self._read(there[:1], rank)) if there else None
        if len(there) == len(wanted.mailboxes):
            return Answer("value", self._read(there, rank))
        missing = [mailbox.source for mailbox in wanted.mailboxes if mailbox not in there]
        if any(self._ended.get(source) == "early" for source in missing):
            return Answer("stop")
        return None

    def _has_letter(self, mailbox: Mailbox, reader: int) -> bool:
        box = self._boxes.get(mailbox)
        return box is not None and box.num_read[reader] < box.num_posted

    def _read(self, mailboxes: Iterable[Mailbox], reader: int) -> dict[int, bytes]:
        """The next letter of each mailbox, by who wrote it."""
        found = {}
        for mailbox in mailboxes:
            box = self._boxes[mailbox]
            number = box.num_read[reader]
            box.num_read[reader] += 1
            # A rank that begins later reads what was left for all.
            is_last = mailbox.target is not None
            found[mailbox.source] = box.letters.pop(number) if is_last else box.letters[number]
        return found

    def _do_without(self) -> bool:
        """Answers those who may do without ranks that are not run; whether there are any."""
        done = False
        for rank, waiting in list(self._waiting.items()):
            wanted = waiting.wanted
            if isinstance(wanted, Keys) or not wanted.may_be_missing:
                continue
            there = [one for one in wanted.mailboxes if self._has_letter(one, rank)]
            absent = [one for one in wanted.mailboxes if one.source not in self.run]
            if len(there) + len(absent) == len(wanted.mailboxes):
                del self._waiting[rank]
                self._tell(rank, Answer("value", self._read(there, rank)))
                done = True
        return done

    def _end_all(self) -> None:
        """Nobody can go on. Where one was stopped early, its partners are to stop too; else it is
        an error of all, told to one: with it the others are ended."""
        if "early" in self._ended.values():
            for rank in self._waiting:
                self._tell(rank, Answer("stop"))
            self._waiting.clear()
            return
        if self._start is not None and self._reserve not in (None, *self.run):
            assert self._reserve is not None
            self._start(self._reserve)
            return
        lines = [self._reason(rank, self._waiting[rank]) for rank in sorted(self._waiting)]
        is_hang = len(lines) > 1
        told = f"no rank can go on: {'; '.join(lines)}" if is_hang else lines[0]
        first = min(self._waiting)
        del self._waiting[first]
        self._tell(first, Answer("hang" if is_hang else "unanswered", told))

    def _reason(self, rank: int, waiting: _Waiting) -> str:
        words = _words(rank, waiting)
        if isinstance(waiting.wanted, Keys):
            if len(self.run) > 1:
                return words
            return (
                f"{words}, which another process would set; that process is not run "
                "(--rank all-distinct runs it)"
            )
        mailboxes = waiting.wanted.mailboxes
        ended = [
            one.source
            for one in mailboxes
            if one.source in self._ended and not self._has_letter(one, rank)
        ]
        if ended:
            verb = "have" if len(ended) > 1 else "has"
            return f"{words}, but rank{'s' * (len(ended) > 1)} {ranks_text(ended)} {verb} ended"
        absent = {one.source for one in mailboxes} - self.run
        if not absent:
            return words
        listed = ",".join(map(str, sorted(self.run | absent)))
        is_or_are = "which is not run" if len(absent) == 1 else "which are not run"
        return f"{words}, {is_or_are}; --rank all-distinct or --rank {listed} runs them together"


def _words(rank: int, waiting: _Waiting) -> str:
    wanted = waiting.wanted
    where = f"rank {rank} at {waiting.site}" if waiting.site else f"rank {rank}"
    if isinstance(wanted, Keys):
        keys = ", ".join(f'"{key.rpartition(NAME_END)[2]}"' for key in wanted.keys)
        return f"{where} waits for the key {keys}"
    sources = sorted(one.source for one in wanted.mailboxes)
    what = wanted.mailboxes[0].what if wanted.mailboxes else "letters"
    names = "rank" if len(sources) == 1 else "one of ranks" if wanted.is_any else "ranks"
    return f"{where} waits for {what} by {names} {ranks_text(sources)}"

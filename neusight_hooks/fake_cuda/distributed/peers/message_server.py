"""What ranks that run side by side give each other: messages in inboxes, and keys of a store."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from neusight.fake_cuda.distributed.rank import ranks_text
from neusight.predictors.clusters.placement import ranges_text

#: Ends the name of a store before a key of it.
NAME_END = "\n"

#: How a rank ended: by itself, or by neusight because its steps were steady.
EndKind = Literal["well", "early"]


class Inbox(NamedTuple):
    """Where a rank leaves messages: `what` they are in words, the group, who writes, and to whom
    (None: to all of the group, each of whom reads each message)."""

    what: str
    group: str
    source: int
    target: int | None = None
    tag: int = 0


class Messages(NamedTuple):
    """One message of each of these inboxes; with `is_any` of the first that has one. Where
    `may_be_missing`, those of ranks that are not run are omitted."""

    inboxes: tuple[Inbox, ...]
    is_any: bool = False
    may_be_missing: bool = False


class StoreKeys(NamedTuple):
    """All of these keys of a store."""

    keys: tuple[str, ...]


#: What a rank may wait for.
Wanted = Messages | StoreKeys


class Reply(NamedTuple):
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
class _InboxState:
    """The messages of an inbox that may still be read, by number."""

    messages: dict[int, bytes] = field(default_factory=dict)
    num_posted: int = 0
    num_read: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class MessageServer:
    """Knows who runs, who waits for what, and answers as soon as it can.

    `start` makes a rank run that another one needs, and `reserve` where no rank can go on without
    it; without `start` the ranks are those that were begun, and all others are omitted. Who
    waits is answered through `answers`, which is to be emptied after each call. What is answered
    does not depend on who is quicker: that a rank is not run counts only once no rank can go on.
    With `start`, where ranks run one after the other, one that has ended counts as one that is not
    run; `unmet` says of which that was wrong.
    """

    def __init__(
        self, start: Callable[[int], None] | None = None, reserve: int | None = None
    ) -> None:
        #: What is to be sent to waiting ranks by now.
        self.answers: list[tuple[int, Reply]] = []
        self._start = start
        self._reserve = reserve
        self._is_interrupted = False
        self._live: set[int] = set()
        self._ended: dict[int, EndKind] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._inbox_states: dict[Inbox, _InboxState] = defaultdict(_InboxState)
        self._store: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = defaultdict(deque)
        #: Messages that a rank went on without: how many, and the last line.
        self._omitted: dict[tuple[Inbox, int], tuple[int, str]] = {}

    # -- who runs ---------------------------------------------------------------------------------

    @property
    def run(self) -> frozenset[int]:
        return frozenset(self._live | self._ended.keys())

    def begin(self, rank: int) -> None:
        """A rank runs from now on; those that are stated begin before any of them asks."""
        self._live.add(rank)

    def end(self, rank: int, kind: EndKind) -> None:
        self._live.discard(rank)
        self._waiting.pop(rank, None)
        self._ended[rank] = kind
        self._reply_to_waiting()

    def require_rank(self, rank: int) -> None:
        """A rank exchanges something with this one, which so must run."""
        if self._start is not None and rank not in self.run:
            self._start(rank)

    def interrupt(self) -> None:
        """Ctrl-C: no rank waits from now on."""
        self._is_interrupted = True
        self._reply_to_waiting()

    # -- messages ---------------------------------------------------------------------------------

    def post(self, messages: Sequence[tuple[Inbox, bytes]]) -> None:
        for inbox, data in messages:
            if inbox.target is not None:
                self.require_rank(inbox.target)
                if inbox.target not in self.run:
                    continue
            box = self._inbox_states[inbox]
            box.messages[box.num_posted] = data
            box.num_posted += 1
        self._reply_to_waiting()

    def want(self, rank: int, wanted: Wanted, site: str) -> None:
        """A rank waits for something; the answer may be there at once."""
        if isinstance(wanted, Messages) and not wanted.may_be_missing and not wanted.is_any:
            for inbox in wanted.inboxes:
                self.require_rank(inbox.source)
        self._waiting[rank] = _Waiting(wanted, site)
        self._reply_to_waiting()

    def give_up(self, rank: int, limit_s: float) -> None:
        """A rank has waited for too long."""
        waiting = self._waiting.pop(rank)
        text = f"{_words(rank, waiting)}, but got no reply within {limit_s:g} s (--wait)"
        self._reply(rank, Reply("unanswered", text))
        self._reply_to_waiting()

    @property
    def waiting_for_keys(self) -> Iterable[int]:
        """The ranks that wait for keys which no rank is known to set."""
        return [
            rank for rank, waiting in self._waiting.items() if isinstance(waiting.wanted, StoreKeys)
        ]

    # -- the store --------------------------------------------------------------------------------

    def set(self, key: str, value: bytes) -> None:
        self._store[key] = value
        self._reply_to_waiting()

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets the key where it has the expected value, or where there is none and none is
        expected; what it has then."""
        found = self._store.get(key)
        if found == expected or (found is None and not expected):
            self.set(key, desired)
            return desired
        return expected if found is None else found

    def add(self, key: str, amount: int) -> int:
        total = int(self._store.get(key, b"0")) + amount
        self.set(key, str(total).encode())
        return total

    def append(self, key: str, value: bytes) -> None:
        self.set(key, self._store.get(key, b"") + value)

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._store for key in keys)

    def values(self, keys: Sequence[str]) -> list[bytes]:
        return [self._store[key] for key in keys]

    def delete(self, key: str) -> bool:
        return self._store.pop(key, None) is not None

    def list_keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._store if key.startswith(prefix))

    # -- answering --------------------------------------------------------------------------------

    def _reply_to_waiting(self) -> None:
        """Answers all that can be; where no rank can go on, those that continue without."""
        if self._is_interrupted:
            for rank in self._waiting:
                self._reply(rank, Reply("interrupt"))
            self._waiting.clear()
        self._reply_to_ready()
        while self._waiting and self._live and self._live <= self._waiting.keys():
            if self._do_without():
                self._reply_to_ready()
                continue
            self._end_all()

    def _reply_to_ready(self) -> None:
        for rank, waiting in list(self._waiting.items()):
            reply = self._reply_to(rank, waiting)
            if reply is not None:
                del self._waiting[rank]
                self._reply(rank, reply)

    def _reply(self, rank: int, reply: Reply) -> None:
        self.answers.append((rank, reply))

    def _reply_to(self, rank: int, waiting: _Waiting) -> Reply | None:
        wanted = waiting.wanted
        if isinstance(wanted, StoreKeys):
            return Reply("value", self.values(wanted.keys)) if self.check(wanted.keys) else None
        there = [inbox for inbox in wanted.inboxes if self._has_message(inbox, rank)]
        if wanted.is_any:
            return Reply("value", self._read(there[:1], rank)) if there else None
        if len(there) == len(wanted.inboxes):
            return Reply("value", self._read(there, rank))
        missing = [inbox.source for inbox in wanted.inboxes if inbox not in there]
        if any(self._ended.get(source) == "early" for source in missing):
            return Reply("stop")
        return None

    def _has_message(self, inbox: Inbox, reader: int) -> bool:
        box = self._inbox_states.get(inbox)
        return box is not None and box.num_read[reader] < box.num_posted

    def _read(self, inboxes: Iterable[Inbox], reader: int) -> dict[int, bytes]:
        """The next message of each inbox, by its sender."""
        found = {}
        for inbox in inboxes:
            box = self._inbox_states[inbox]
            number = box.num_read[reader]
            box.num_read[reader] += 1
            # A rank that begins later reads what was left for all.
            is_last = inbox.target is not None
            found[inbox.source] = box.messages.pop(number) if is_last else box.messages[number]
        return found

    def _do_without(self) -> bool:
        """Answers those who may do without ranks that are not run; whether there are any."""
        done = False
        for rank, waiting in list(self._waiting.items()):
            wanted = waiting.wanted
            if isinstance(wanted, StoreKeys) or not wanted.may_be_missing:
                continue
            there = [one for one in wanted.inboxes if self._has_message(one, rank)]
            absent = [one for one in wanted.inboxes if one not in there and self._is_absent(one)]
            if len(there) + len(absent) == len(wanted.inboxes):
                for one in absent:
                    count, _ = self._omitted.get((one, rank), (0, ""))
                    self._omitted[one, rank] = (count + 1, waiting.site)
                del self._waiting[rank]
                self._reply(rank, Reply("value", self._read(there, rank)))
                done = True
        return done

    def _is_absent(self, inbox: Inbox) -> bool:
        return inbox.source not in (self.run if self._start is None else self._live)

    def unmet(self) -> str:
        """Which ranks went on without what another one that was run never sent, though it came to
        its end, in words; "" where there are none."""
        waiting: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for (inbox, reader), (count, site) in self._omitted.items():
            box = self._inbox_states[inbox]
            is_missing = box.num_read[reader] + count > box.num_posted
            if is_missing and self._ended.get(inbox.source) == "well":
                waiting[inbox.what, site, inbox.source].append(reader)
        lines = [
            f"rank{'s' * (len(ranks) > 1)} {ranges_text(ranks)} at {site} "
            f"wait{'s' * (len(ranks) == 1)} for {what} by rank {source}, which has ended"
            for (what, site, source), ranks in waiting.items()
        ]
        return f"no rank can continue: {'; '.join(lines)}" if lines else ""

    def _end_all(self) -> None:
        """No rank can go on. Where one was stopped early, its partners are to stop too; else it is
        an error of all, sent to one: with it the others are ended."""
        if "early" in self._ended.values():
            for rank in self._waiting:
                self._reply(rank, Reply("stop"))
            self._waiting.clear()
            return
        if self._start is not None and self._reserve not in (None, *self.run):
            assert self._reserve is not None
            self._start(self._reserve)
            return
        lines = [self._reason(rank, self._waiting[rank]) for rank in sorted(self._waiting)]
        is_hang = len(lines) > 1
        reported = f"no rank can continue: {'; '.join(lines)}" if is_hang else lines[0]
        first = min(self._waiting)
        del self._waiting[first]
        self._reply(first, Reply("hang" if is_hang else "unanswered", reported))

    def _reason(self, rank: int, waiting: _Waiting) -> str:
        words = _words(rank, waiting)
        if isinstance(waiting.wanted, StoreKeys):
            if len(self.run) > 1:
                return words
            return (
                f"{words}, which another process would set; that process is not run "
                "(--rank all-distinct runs it)"
            )
        inboxes = waiting.wanted.inboxes
        ended = [
            one.source
            for one in inboxes
            if one.source in self._ended and not self._has_message(one, rank)
        ]
        if ended:
            verb = "have" if len(ended) > 1 else "has"
            return f"{words}, but rank{'s' * (len(ended) > 1)} {ranks_text(ended)} {verb} ended"
        absent = {one.source for one in inboxes} - self.run
        if not absent:
            return words
        listed = ",".join(map(str, sorted(self.run | absent)))
        is_or_are = "which is not run" if len(absent) == 1 else "which are not run"
        return f"{words}, {is_or_are}; --rank all-distinct or --rank {listed} runs them together"


def _words(rank: int, waiting: _Waiting) -> str:
    wanted = waiting.wanted
    where = f"rank {rank} at {waiting.site}" if waiting.site else f"rank {rank}"
    if isinstance(wanted, StoreKeys):
        keys = ", ".join(f'"{key.rpartition(NAME_END)[2]}"' for key in wanted.keys)
        return f"{where} waits for the key {keys}"
    sources = sorted(one.source for one in wanted.inboxes)
    what = wanted.inboxes[0].what if wanted.inboxes else "messages"
    names = "rank" if len(sources) == 1 else "one of ranks" if wanted.is_any else "ranks"
    return f"{where} waits for {what} by {names} {ranks_text(sources)}"

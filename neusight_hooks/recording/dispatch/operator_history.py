"""What operators did before each entry of a program, and which entry came next, to know it again.

A model repeats its layers, and a program its steps. Once some entries in a row, and the operators
around them, are those of earlier entries, the operators around what follows are taken to be those
that were around it earlier, until another entry comes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from neusight.recording.tape import CallEvent, CallToken

#: Entries in a row that must be as earlier ones were.
_ALIKE = 24

#: What an entry does, without sizes.
Key = Hashable


class OperatorHistory:
    """A graph of *places*: what operators did before an entry, and the places of the entries that
    came next. `log` has the operators of each place. A *gap* is a place before which operators were
    not followed, since the program had done something else there before; the next time they are.
    """

    def __init__(self, log: list[tuple[CallEvent, ...]]) -> None:
        self._log = log
        self._next: list[dict[Key, int]] = []
        #: The operators that run at each place, from the outermost on.
        self._running: list[tuple[CallToken, ...]] = []
        self._latest: dict[Key, int] = {}
        self._at: int | None = None
        self._alike: int | None = None  # an earlier place like the last one
        self._num_alike = 0
        # By places from which on operators are followed next time: gaps, and how many entries behind.
        self._gaps: dict[int, dict[int, int]] = {}
        self._fills_gap = False
        self._num_followed = 0  # entries that are followed at least
        self._clear: int | None = None  # the last place where only nodes run
        self._since_clear = 0

    @property
    def is_known(self) -> bool:
        """Whether the last entries were as earlier ones."""
        return self._num_alike >= _ALIKE and not (self._fills_gap or self._num_followed > 0)

    @property
    def has_gaps(self) -> bool:
        """Whether operators are missing somewhere."""
        return bool(self._gaps)


    @property
    def running(self) -> tuple[CallToken, ...]:
        """The operators that run at the last entry."""
        return () if self._at is None else self._running[self._at]

    def begin(self) -> None:
        """What comes next follows nothing that is known."""
        self._at = self._alike = None
        self._num_alike = 0
        self._fills_gap, self._num_followed = False, 0

    def repeats(self, key: Key) -> int | None:
        """The place of an entry that came after the last one earlier, if one did."""
        place = None if self._at is None else self._next[self._at].get(key)
        if place is not None:
            self._at = place
            running = self._running[place]
            if running and not running[-1].is_node:
                self._since_clear += 1
            else:
                self._clear, self._since_clear = place, 0
        return place

    def begins_gap(self, place: int) -> bool:
        """Whether entries follow before which operators are missing so far."""
        if place not in self._gaps:
            return False
        self._num_followed = max(self._num_followed, *self._gaps[place].values())
        return True

    def add_gap(self, key: Key, events: tuple[CallEvent, ...]) -> int:
        """The place of an entry that did not come here earlier. Before it operators did this, and
        perhaps more."""
        before = self._at
        self._alike, self._num_alike = None, 0
        place = self._new(events, _after(events, self.running))
        if before is not None:
            self._next[before][key] = place
        if self._clear is not None:
            self._gaps.setdefault(self._clear, {})[place] = self._since_clear + 1
        self._at = self._latest[key] = place
        return place

    def add(self, key: Key, events: tuple[CallEvent, ...]) -> int:
        """The place of an entry before which operators did this."""
        before, running = self._at, _after(events, self.running)
        self._num_followed -= 1
        if before is not None and self._fill(before, key, events, running):
            return self._next[before][key]
        place = self._after_last(self._at, key, events, running)
        if place is None:
            place = self._after_last(self._alike, key, events, running)
        if place is not None:
            self._num_alike += 1
        else:
            found = self._latest.get(key)
            is_like = found is not None and self._is(found, events, running)
            place, self._num_alike = found if is_like else None, int(is_like)
        self._alike = place
        if place is None or not (self.is_known or self._is_next(before, key, place)):
            place = self._new(events, running)
        if before is not None:
            self._next[before][key] = place
        self._at = self._latest[key] = place
        self.begins_gap(place)
        return place

    def _fill(
        self, before: int, key: Key, events: tuple[CallEvent, ...], running: tuple[CallToken, ...]
    ) -> bool:
        """Whether this was missing, or is behind what was missing and still runs."""
        place = self._next[before].get(key)
        begins = [begin for begin, gaps in self._gaps.items() if place in gaps]
        if place is None or not (self._fills_gap or begins):
            self._fills_gap = False
            return False
        for begin in begins:
            del self._gaps[begin][place]
            if not self._gaps[begin]:
                del self._gaps[begin]
        self._fills_gap = running != self._running[place]
        self._log[place], self._running[place] = events, running
        self._at = self._alike = place
        self._num_alike = _ALIKE
        self.begins_gap(place)
        return True

    def _is_next(self, before: int | None, key: Key, place: int) -> bool:
        return before is not None and self._next[before].get(key) == place

    def _after_last(
        self, last: int | None, key: Key, events: Sequence[CallEvent], running: Sequence[CallToken]
    ) -> int | None:
        place = None if last is None else self._next[last].get(key)
        return place if place is not None and self._is(place, events, running) else None

    def _is(self, place: int, events: Sequence[CallEvent], running: Sequence[CallToken]) -> bool:
        return self._log[place] == events and self._running[place] == running

    def _new(self, events: tuple[CallEvent, ...], running: tuple[CallToken, ...]) -> int:
        self._log.append(events)
        self._running.append(running)
        self._next.append({})
        return len(self._log) - 1


def _after(
    events: Sequence[CallEvent], running: tuple[CallToken, ...]
) -> tuple[CallToken, ...]:
    """The operators that run after these events."""
    if not events:
        return running
    open_ = list(running)
    for event in events:
        if event is None:
            del open_[-1:]
        elif isinstance(event, CallToken):
            open_.append(event)
    return tuple(open_)

"""What operators did before each entry of a program, and which entry came next, to know it again.

A model repeats its layers, and a program its steps. Once some entries in a row, and the operators
around them, are those of earlier entries, the operators around what follows are taken to be those
that were around it earlier, until another entry comes.
"""

from __future__ import annotations

from collections.abc import Hashable

from neusight.recording.tape import CallEvent, CallToken, TapedCalls

#: Entries in a row that must be as earlier ones were, and how many of them at least do something
#: else than the one before: a loop over a model's tensors, which converts each, says nothing of
#: what comes then.
_ALIKE = 16
_CHANGES = 4

#: Entries before a gap among which one is looked for where only nodes run.
_MOST_BEFORE_GAP = 64

#: Entries behind the begin of an annotation that are followed twice: optimizers do something else
#: in their first step.
_ANOTHER_TIME = 4

#: What an entry does, without sizes.
Key = Hashable


class OperatorHistory:
    """A graph: what operators did before an entry, and the same of the entries that came next.

    A *gap* is an entry before which operators were not followed, since the program had done
    something else there before. The next time they are.
    """

    def __init__(self) -> None:
        self.num_gaps = 0
        #: Whether one was found since the list of operators that matter was last read.
        self.has_new_gaps = False
        self._latest: dict[Key, TapedCalls] = {}
        self._key: Key = None  # of the last entry
        #: Before those entries that preceded the last one.
        self.path: list[TapedCalls] = []
        self.begin()

    @property
    def is_known(self) -> bool:
        """Whether the last entries were as earlier ones."""
        is_alike = self._num_alike >= _ALIKE and self._num_changes >= _CHANGES
        return is_alike and self._num_followed <= 0 and not self._fills_gap

    def begin(self) -> None:
        """What comes next follows nothing that is known."""
        #: Before the last entry.
        self.last = TapedCalls((), ())
        self.path.clear()
        self._alike: TapedCalls | None = None  # before an earlier entry like the last one
        self._num_alike = self._num_changes = 0
        self._fills_gap = False
        self._num_followed = 0  # entries that are followed at least

    def add(self, key: Key, events: tuple[CallEvent, ...]) -> TapedCalls:
        """An entry comes before which operators did this."""
        last, running = self.last, running_after(events, self.last.running)
        self._num_followed -= 1
        known = last.following.get(key)
        if known is not None and (known.is_gap or self._fills_gap):
            self._fill(known, events, running)
            calls = known
        else:
            self._fills_gap = False
            calls = self._as_before(known, key, events, running)
        self._key = key
        last.following[key] = self.last = self._latest[key] = calls
        del self.path[:-_MOST_BEFORE_GAP]
        self.path.append(calls)
        if calls.gaps:
            self.may_begin_gap()
        elif known is None and _is_mark(key, "annotation_begin"):
            calls.gaps = [(None, _ANOTHER_TIME)]
        return calls

    def add_gap(self, key: Key, events: tuple[CallEvent, ...]) -> TapedCalls:
        """An entry comes that did not come here before; operators did this, and perhaps more."""
        running = running_after(events, self.last.running)
        calls = TapedCalls(events, running, is_gap=True)
        self.num_gaps += 1
        # Before a mark, which the timeline has by itself, only what is no op may be missing.
        self.has_new_gaps = self.has_new_gaps or not _is_mark(key)
        for distance, earlier in enumerate(reversed(self.path), start=1):
            is_before_node = not earlier.running or earlier.running != running
            if is_before_node and all(token.is_node for token in earlier.running):
                earlier.gaps = [*earlier.gaps, (calls, distance)]
                break
        self._alike, self._num_alike, self._num_changes = None, 0, 0
        self.last.following[key] = self.last = self._latest[key] = calls
        self.path.append(calls)
        return calls

    def may_begin_gap(self) -> bool:
        """Whether a gap is among the entries that came next, or may be."""
        last = self.last
        gaps = [(gap, distance) for gap, distance in last.gaps if gap is None or gap.is_gap]
        self._num_followed = max([self._num_followed, *(distance for _, distance in gaps)])
        last.gaps = [(gap, distance) for gap, distance in gaps if gap is not None]
        return bool(gaps)

    def _fill(
        self, calls: TapedCalls, events: tuple[CallEvent, ...], running: tuple[CallToken, ...]
    ) -> None:
        """These were missing, or are behind what was missing and still runs."""
        self.num_gaps -= calls.is_gap
        self._fills_gap = running != calls.running
        calls.events, calls.running = events, running
        calls.is_gap = calls.is_empty = False
        self._alike, self._num_alike, self._num_changes = calls, _ALIKE, _CHANGES

    def _as_before(
        self,
        known: TapedCalls | None,
        key: Key,
        events: tuple[CallEvent, ...],
        running: tuple[CallToken, ...],
    ) -> TapedCalls:
        """What came before, or something new: here, behind an earlier entry like the last one, or
        (as the first of some in a row) anywhere."""
        if known is not None and known.events == events and known.running == running:
            self._alike = known
            self._count_alike(key)
            return known
        alike = None if self._alike is None else self._alike.following.get(key)
        if alike is None or alike.events != events or alike.running != running:
            self._num_alike = self._num_changes = 0
            alike = self._latest.get(key)
            if alike is None or alike.events != events or alike.running != running:
                self._alike = None
                return self._new(events, running)
        self._alike = alike
        self._count_alike(key)
        return alike if self._num_alike >= _ALIKE else self._new(events, running)

    def _count_alike(self, key: Key) -> None:
        self._num_alike += 1
        self._num_changes += key != self._key

    def _new(self, events: tuple[CallEvent, ...], running: tuple[CallToken, ...]) -> TapedCalls:
        is_empty = not events and not self.num_gaps  # else it may be behind what is missing
        return TapedCalls(events, running, is_empty=is_empty)


def _is_mark(key: Key, kind: str | None = None) -> bool:
    """Whether an entry is a mark, which has a kind, a name and a detail."""
    return isinstance(key, tuple) and len(key) == 3 and kind in (None, key[0])


def running_after(
    events: tuple[CallEvent, ...], running: tuple[CallToken, ...]
) -> tuple[CallToken, ...]:
    """The operators that run after these events, from the outermost on."""
    if not events:
        return running
    open_ = list(running)
    for event in events:
        if event is None:
            del open_[-1:]
        elif isinstance(event, CallToken):
            open_.append(event)
    return tuple(open_)

"""A profile played again with other kernel times: its host goes on as it did, and waits as it must.

Each kernel starts for the reason for which it started then: its launch, the kernel before it on its
stream, or one on another stream. A call that waited for a kernel waits for it again. With the
kernel times of the profile everything lies where it lay.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile, RuntimeCall

#: A kernel that starts this much later than its launch, ns, waited for another one.
_WAITED_NS = 50_000

#: A kernel that starts at most so long after another one ended, ns, may have waited for it.
_FOLLOWS_NS = 20_000

#: The clocks of host and GPU agree within so much, ns.
_CLOCKS_NS = 2_000

#: From launch to start on an idle stream, and between queued kernels, ns, where a profile has none
#: that shows it (the medians of the H100 profiles of the `plain` host).
_LATENCY_NS = 5_000
_GAP_NS = 1_500

#: Words in the names of runtime calls that may wait for the GPU.
_WAITING = ("Synchronize", "Memcpy", "StreamWait", "Free")


class Placed(NamedTuple):
    """When a kernel runs now."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Replayed:
    """Where everything lies now: `events` beside `Profile.events`, and the host's clock."""

    events: tuple[Placed, ...]
    _changes: tuple[int, ...]
    _shifts: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]

    def host_ns(self, was_ns: int) -> int:
        """What the host did at that time then, it does at this time now."""
        place = bisect_right(self._changes, was_ns) - 1
        return was_ns + (self._shifts[place] if place >= 0 else 0)


def replayed(profile: Profile, durations_ns: Sequence[int]) -> Replayed:
    """The profile with these durations of its events, in their order."""
    player = _Player(profile, durations_ns)
    for moment in player.moments():
        player.play(moment)
    events = tuple(placed for placed in player.placed if placed is not None)
    return Replayed(events, tuple(player.changes), tuple(player.shifts), tuple(player.waits))


class _Moment(NamedTuple):
    """A runtime call with the events it launches; or an event whose launch was not recorded."""

    at_ns: int
    call: int
    events: tuple[int, ...]


class _Player:
    """Goes through a profile in the order of its host, with a clock that runs apart from it."""

    def __init__(self, profile: Profile, durations_ns: Sequence[int]) -> None:
        self._profile = profile
        self._durations = durations_ns
        self._shift = 0
        self.placed: list[Placed | None] = [None] * len(profile.events)
        self.changes: list[int] = []
        self.shifts: list[int] = []
        #: Host times, as they were, at which it begins to wait, and how long it waits now.
        self.waits: list[tuple[int, int]] = []
        self._last: dict[tuple[int, int], int] = {}
        order = sorted(range(len(profile.events)), key=lambda i: (profile.events[i].end_ns, i))
        self._by_end = order
        self._ends = [profile.events[i].end_ns for i in order]
        self._latency_ns, self._gap_ns = _typical(profile)

    def moments(self) -> list[_Moment]:
        """All that happens, in the order in which it happened."""
        launched: dict[int, list[int]] = {}
        alone = []
        for index, event in enumerate(self._profile.events):
            if event.launch >= 0:
                launched.setdefault(event.launch, []).append(index)
            else:
                alone.append(_Moment(event.start_ns, -1, (index,)))
        calls = [
            _Moment(call.start_ns, position, tuple(launched.get(position, ())))
            for position, call in enumerate(self._profile.calls)
        ]
        return sorted(calls + alone)

    def play(self, moment: _Moment) -> None:
        """Lets one of them happen."""
        for index in moment.events:
            self._place(index, moment.at_ns)
        if moment.call >= 0:
            self._wait(self._profile.calls[moment.call])

    def _place(self, index: int, launched_ns: int) -> None:
        event = self._profile.events[index]
        stream = (event.device, event.stream)
        launch_ns = launched_ns + self._shift
        late_ns = event.start_ns - launched_ns
        before = self._last.get(stream)
        cause = before
        if late_ns > _WAITED_NS and not self._follows(event, before):
            cause = self._cause(event, index)
        start_ns = launch_ns + late_ns
        if cause is not None:
            old, new = self._profile.events[cause], self._now(cause)
            gap_ns = event.start_ns - old.end_ns
            if gap_ns <= late_ns:
                start_ns = max(launch_ns + min(late_ns, self._latency_ns), new.end_ns + gap_ns)
            else:
                start_ns = max(launch_ns + late_ns, new.end_ns + min(gap_ns, self._gap_ns))
        if before is not None and cause != before:
            own_gap_ns = min(event.start_ns - self._profile.events[before].end_ns, self._gap_ns)
            start_ns = max(start_ns, self._now(before).end_ns + own_gap_ns)
        self.placed[index] = Placed(start_ns, start_ns + self._durations[index])
        self._last[stream] = index

    def _now(self, index: int) -> Placed:
        placed = self.placed[index]
        assert placed is not None
        return placed

    def _follows(self, event: DeviceEvent, before: int | None) -> bool:
        """Whether it started as soon as the one before it on its stream had ended."""
        return (
            before is not None
            and event.start_ns - self._profile.events[before].end_ns <= _FOLLOWS_NS
        )

    def _cause(self, event: DeviceEvent, index: int) -> int | None:
        """The event on another stream whose end it seems to have waited for."""
        place = bisect_right(self._ends, event.start_ns + _CLOCKS_NS)
        for other in reversed(self._by_end[:place]):
            found = self._profile.events[other]
            if event.start_ns - found.end_ns > _FOLLOWS_NS:
                return None
            is_placed = self.placed[other] is not None and other != index
            if is_placed and found.device == event.device:
                return other
        return None

    def _wait(self, call: RuntimeCall) -> None:
        waited_for = self._waited_for(call)
        if waited_for is None:
            return
        old_end_ns = self._profile.events[waited_for].end_ns
        start_ns = call.start_ns + self._shift
        now_ns = max(start_ns, self._now(waited_for).end_ns)
        end_ns = now_ns + call.end_ns - max(call.start_ns, old_end_ns)
        self.waits.append((call.start_ns, now_ns - start_ns))
        self._shift = end_ns - call.end_ns
        self.changes.append(call.end_ns)
        self.shifts.append(self._shift)

    def _waited_for(self, call: RuntimeCall) -> int | None:
        """The last event that ended while the call ran, if it may have waited for that."""
        if not any(word in call.name for word in _WAITING):
            return None
        first = bisect_left(self._ends, call.start_ns)
        place = bisect_right(self._ends, call.end_ns + _CLOCKS_NS)
        for other in reversed(self._by_end[first:place]):
            if self.placed[other] is not None:
                return other
        return None


def _typical(profile: Profile) -> tuple[int, int]:
    """From launch to start on an idle stream, and between queued kernels, ns."""
    latencies, gaps = [], []
    last: dict[tuple[int, int], int] = {}
    for event in profile.events:
        stream = (event.device, event.stream)
        before_ns = last.get(stream)
        last[stream] = event.end_ns
        call = profile.launch_of(event)
        if call is None:
            continue
        if before_ns is None or before_ns <= call.start_ns:
            latencies.append(event.start_ns - call.start_ns)
        elif event.start_ns >= before_ns:
            gaps.append(event.start_ns - before_ns)
    latency_ns = round(median(latencies)) if latencies else _LATENCY_NS
    return max(0, latency_ns), round(median(gaps)) if gaps else _GAP_NS

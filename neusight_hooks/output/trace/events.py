"""The events of a trace, as they are written, with the numbers that tie lanes to each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted

from neusight.timeline.spans import Thread

__all__ = [
    "APART_NS",
    "PROCESS_ID",
    "Event",
    "EventLog",
    "compact_json",
    "joined",
    "members",
]

Event = dict[str, object]

#: The process shown; rank r is this plus r. Its main thread has the same number.
PROCESS_ID = 4000
#: Intervals on one lane must nest when compared as doubles, so ends keep apart by this.
APART_NS = 1


def compact_json(value: object) -> str:
    """JSON without spaces, as events are written; ValueError where a number is none."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def members(args: Mapping[str, object]) -> str:
    """Arguments of an event as JSON, without the braces.

    >>> members({"stream": 7, "grid": [132, 1, 1]})
    '"stream":7,"grid":[132,1,1]'
    """
    return compact_json(args)[1:-1]


def joined(*parts: str) -> str:
    """Members of several, one after the other; those that are empty leave nothing."""
    return ",".join(filter(None, parts))


class EventLog:
    """Events in the order they are written, each as its line of JSON; times are nanoseconds from
    the block's start. `args` are the text of `members`: a trace has a hundred thousand events with
    few different arguments, so what is equal is made to text once.

    `device` is the GPU's number on its host.
    """

    def __init__(self, *, rank: int, device: int, base_ns: int) -> None:
        self.lines: list[str] = []
        self.device = device
        self.process = PROCESS_ID + rank
        self.threads: dict[Thread, int] = {"main": self.process, "autograd": self.process + 1}
        self._base_ns = base_ns
        self._begins: dict[tuple[str, str, Thread], str] = {}
        self._moments: dict[tuple[str, str, int], str] = {}
        self._num_ids = 0
        self._num_indices = 0
        self._num_flows = 0

    def complete(
        self, category: str, name: str, thread: Thread, start_ns: int, end_ns: int, args: str
    ) -> None:
        """Something with a duration, on a thread of the host."""
        begin = self._begins.get((category, name, thread)) or self._begin(category, name, thread)
        lasts = end_ns - start_ns if end_ns > start_ns else 0
        self.lines.append(
            f'{begin}{(start_ns - self._base_ns) / 1000},"dur":{lasts / 1000},"args":{{{args}}}}}'
        )

    def operator(
        self, category: str, name: str, thread: Thread, start_ns: int, end_ns: int, external: int,
        own: str,
    ) -> None:  # fmt: skip
        """An operator or annotation on a thread of the host, with the next index; `own` are the
        arguments that not all of them have."""
        begin = self._begins.get((category, name, thread)) or self._begin(category, name, thread)
        lasts = end_ns - start_ns if end_ns > start_ns else 0
        index = self._num_indices
        self._num_indices = index + 1
        comma = "," if own else ""
        self.lines.append(
            f'{begin}{(start_ns - self._base_ns) / 1000},"dur":{lasts / 1000},"args":{{'
            f'"External id":{external},"Record function id":0,{own}{comma}"Ev Idx":{index}}}}}'
        )

    def _begin(self, category: str, name: str, thread: Thread) -> str:
        """What events of a name on a thread begin with."""
        begin = self._begins[category, name, thread] = (
            f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{self.process},'
            f'"tid":{self.threads[thread]},"ts":'
        )
        return begin

    def on_stream(
        self, category: str, name: str, stream: int, start_ns: int, end_ns: int, args: str
    ) -> None:
        """Something with a duration, on a stream of the GPU."""
        self.lines.append(
            f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{self.device},'
            f'"tid":{stream},"ts":{(start_ns - self._base_ns) / 1000},'
            f'"dur":{(end_ns - start_ns) / 1000},"args":{{{args}}}}}'
        )

    def arrow_start(self, kind: str, flow: int, time_ns: int, thread: Thread) -> None:
        """Leaves a launch for its kernels, or a forward op for its backward node."""
        self.lines.append(
            f'{{"ph":"s","id":{flow},"pid":{self.process},"tid":{self.threads[thread]},'
            f'"ts":{(time_ns - self._base_ns) / 1000},"cat":"{kind}","name":"{kind}"}}'
        )

    def arrow_end(self, kind: str, flow: int, time_ns: int, process: int, lane: int) -> None:
        """Arrives where `time_ns` begins something on a thread or stream."""
        self.lines.append(
            f'{{"ph":"f","id":{flow},"pid":{process},"tid":{lane},'
            f'"ts":{(time_ns - self._base_ns) / 1000},"cat":"{kind}","name":"{kind}","bp":"e"}}'
        )

    def instant(self, category: str, name: str, time_ns: int, lane: int, args: str) -> None:
        """A moment on a thread of the host, with the next index."""
        begin = self._moments.get((category, name, lane))
        if begin is None:
            begin = self._moments[category, name, lane] = (
                f'{{"ph":"i","cat":"{category}","s":"t","name":{quoted(name)},'
                f'"pid":{self.process},"tid":{lane},"ts":'
            )
        index = self._num_indices
        self._num_indices = index + 1
        self.lines.append(
            f'{begin}{(time_ns - self._base_ns) / 1000},"args":{{{args},"Ev Idx":{index}}}}}'
        )

    def us(self, time_ns: int) -> float:
        """A time as the file gives it: microseconds from its start."""
        return (time_ns - self._base_ns) / 1000

    def new_id(self) -> int:
        """The next external id."""
        self._num_ids += 1
        return self._num_ids

    def new_flow(self) -> int:
        """The next number of an arrow between ops."""
        self._num_flows += 1
        return self._num_flows

    def next_index(self) -> int:
        """The next index of an event of the host."""
        self._num_indices += 1
        return self._num_indices - 1

"""The events of a trace, with their numbers: what ties lanes to each other."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.timeline.spans import Thread

__all__ = ["APART_NS", "PROCESS_ID", "Event", "EventLog"]

Event = dict[str, object]

#: The process shown; rank r is this plus r. Its main thread bears the same number.
PROCESS_ID = 4000
#: Intervals on one lane must nest when compared as doubles, so ends keep apart by this.
APART_NS = 1


class EventLog:
    """Events in the order they are written; times are nanoseconds from the block's start.

    `device` is the GPU's number on its host.
    """

    def __init__(self, *, rank: int, device: int, base_ns: int) -> None:
        self.events: list[Event] = []
        self.device = device
        self.process = PROCESS_ID + rank
        self.threads: dict[Thread, int] = {"main": self.process, "autograd": self.process + 1}
        self._base_ns = base_ns
        self._num_ids = 0
        self._num_indices = 0
        self._num_flows = 0

    def complete(
        self,
        category: str,
        name: str,
        thread: Thread,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, object],
    ) -> None:
        """Something with a duration, on a thread of the host."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.process,
                "tid": self.threads[thread],
                "ts": self.us(start_ns),
                "dur": max(0, end_ns - start_ns) / 1000,
                "args": args,
            }
        )

    def on_stream(
        self,
        category: str,
        name: str,
        stream: int,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, object],
    ) -> None:
        """Something with a duration, on a stream of the GPU."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.device,
                "tid": stream,
                "ts": self.us(start_ns),
                "dur": (end_ns - start_ns) / 1000,
                "args": args,
            }
        )

    def arrow_start(self, kind: str, flow: int, time_ns: int, thread: Thread) -> None:
        """Leaves a launch for its kernels, or a forward op for its backward node."""
        self.events.append(
            {
                "ph": "s",
                "id": flow,
                "pid": self.process,
                "tid": self.threads[thread],
                "ts": self.us(time_ns),
                "cat": kind,
                "name": kind,
            }
        )

    def arrow_end(self, kind: str, flow: int, time_ns: int, process: int, lane: int) -> None:
        """Arrives where `time_ns` begins something on a thread or stream."""
        self.events.append(
            {
                "ph": "f",
                "id": flow,
                "pid": process,
                "tid": lane,
                "ts": self.us(time_ns),
                "cat": kind,
                "name": kind,
                "bp": "e",
            }
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

    def host_args(self, external: int) -> dict[str, object]:
        """What every event of the host bears before its own arguments."""
        return {"External id": external, "Record function id": 0}

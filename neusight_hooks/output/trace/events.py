"""The events of a trace, as they are written, with the numbers that tie lanes to each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from neusight.timeline.spans import AUTOGRAD, MAIN, Thread, number_of_thread

Event = dict[str, object]

#: The process shown; rank r is this plus r. Its main thread has the same number.
PROCESS_ID = 4000
#: Intervals on one lane must nest when compared as doubles, so ends keep apart by this.
APART_NS = 1
#: Arrows from a launch to its kernels, whose number is its correlation id, and from a forward op to
#: its autograd node.
LAUNCH_ARROW, FORWARD_ARROW = "ac2g", "fwdbwd"


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


#: Kinds of rows, which begin with them: what they hold beside the text that is the same each time.
_OPERATOR, _CALL, _MOMENT, _ARROW, _FUNCTION, _RANGE = range(6)
_Row = tuple[Any, ...]  # by its kind, read in `_lines` alone
#: Rows that are made to one text: as many as the processor's cache holds.
_ROWS_OF_A_TEXT = 400


class Counters(NamedTuple):
    """How far a log has counted, or what is added to numbers of rows that are written again."""

    time_ns: int = 0
    ids: int = 0
    indices: int = 0
    flows: int = 0
    functions: int = 0
    sequence: int = 0
    correlation: int = 0

    def since(self, earlier: Counters) -> Counters:
        """The difference of each number."""
        return Counters(*(now - then for now, then in zip(self, earlier, strict=True)))


class WrittenRows(NamedTuple):
    """Rows of a log that can be written again, and how far it had counted before and after them."""

    first: int
    last: int
    begin: Counters
    end: Counters


class EventLog:
    """Events in the order they are written; times are nanoseconds from the block's start.

    An event is a row of its numbers and of text: a trace has a hundred thousand events with few
    different arguments, so what is equal is made to text once (`args` are that of `members`), and a
    step that repeats has the rows of the one before, with other numbers. `device` is the GPU's
    number on its host.
    """

    def __init__(self, *, rank: int, device: int, base_ns: int) -> None:
        self.device = device
        self.process = PROCESS_ID + rank
        #: Numbers of the threads that were written to so far.
        self.threads: dict[Thread, int] = {MAIN: self.process, AUTOGRAD: self.process + 1}
        self._base_ns = base_ns
        self._rows: list[_Row] = []
        #: Rows that are written again after so many rows.
        self._repeats: list[tuple[int, WrittenRows, Counters]] = []
        self._begins: dict[tuple[str, str, Thread], str] = {}
        self._moments: dict[tuple[str, str, int], str] = {}
        #: What was counted: `time_ns` and `correlation` are not.
        self._num_ids = 0
        self._num_indices = 0
        self._num_flows = 0
        self._num_functions = 0
        #: How many of autograd's numbers earlier steps had.
        self.num_sequences = 0

    def number_of(self, thread: Thread) -> int:
        """The number that a thread of the host has in the trace."""
        number = self.threads.get(thread)
        if number is None:
            number = self.process + 1 + number_of_thread(thread)
            self.threads[thread] = number
        return number

    def texts(self) -> Iterator[str]:
        """The events as JSON with commas between them, some hundreds in each text."""
        written = 0
        for at, rows, offset in self._repeats:
            yield from self._texts(written, at, Counters())
            yield from self._texts(rows.first, rows.last, offset)
            written = at
        yield from self._texts(written, len(self._rows), Counters())

    def _texts(self, first: int, last: int, offset: Counters) -> Iterator[str]:
        for start in range(first, last, _ROWS_OF_A_TEXT):
            yield ",".join(_lines(self._rows[start : min(start + _ROWS_OF_A_TEXT, last)], offset))

    # -- writing again

    def counters(self) -> Counters:
        """How far this has counted."""
        return Counters(
            ids=self._num_ids,
            indices=self._num_indices,
            flows=self._num_flows,
            functions=self._num_functions,
            sequence=self.num_sequences,
        )

    def num_rows(self) -> int:
        """How many rows were written, those that are written again not counted."""
        return len(self._rows)

    def repeat(self, rows: WrittenRows, *, time_ns: int, correlation: int) -> None:
        """Writes rows again, so much later, with the numbers that follow now."""
        offset = self.counters().since(rows.begin)
        offset = offset._replace(time_ns=time_ns, correlation=correlation)
        self._repeats.append((len(self._rows), rows, offset))
        counted = rows.end.since(rows.begin)
        self._num_ids += counted.ids
        self._num_indices += counted.indices
        self._num_flows += counted.flows
        self._num_functions += counted.functions
        self.num_sequences += counted.sequence

    # -- events

    def operator(
        self,
        category: str,
        name: str,
        thread: Thread,
        start_ns: int,
        end_ns: int,
        external: int,
        args: str,
        *,
        number: int | None = None,
        forward_thread: int = 0,
    ) -> None:
        """An operator or annotation on a thread of the host, with the next index; `args` are those
        that not all of them have, `number` is autograd's."""
        begin = self._begins.get((category, name, thread)) or self._begin(category, name, thread)
        lasts = end_ns - start_ns if end_ns > start_ns else 0
        index = self._num_indices
        self._num_indices = index + 1
        self._rows.append(
            (_OPERATOR, begin, start_ns - self._base_ns, lasts, external, number, forward_thread,
             args, index)
        )  # fmt: skip

    def call(
        self, category: str, name: str, thread: Thread, start_ns: int, end_ns: int, external: int,
        args: str, correlation: int,
    ) -> None:  # fmt: skip
        """A call of the runtime on a thread of the host."""
        begin = self._begins.get((category, name, thread)) or self._begin(category, name, thread)
        lasts = end_ns - start_ns if end_ns > start_ns else 0
        start = start_ns - self._base_ns
        self._rows.append((_CALL, begin, start, lasts, external, args, correlation, ""))

    def function(
        self, name: str, thread: Thread, start_ns: int, end_ns: int, number: int,
        parent: int | None, args: str,
    ) -> None:  # fmt: skip
        """A Python function on a thread of the host, with the next index; `args` end with a comma
        where there are any."""
        category = "python_function"
        begin = self._begins.get((category, name, thread)) or self._begin(category, name, thread)
        lasts = end_ns - start_ns if end_ns > start_ns else 0
        index = self._num_indices
        self._num_indices = index + 1
        start = start_ns - self._base_ns
        self._rows.append((_FUNCTION, begin, start, lasts, parent, number, args, index))

    def _begin(self, category: str, name: str, thread: Thread) -> str:
        """What events of a name on a thread begin with."""
        begin = self._begins[category, name, thread] = (
            f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{self.process},'
            f'"tid":{self.number_of(thread)},"ts":'
        )
        return begin

    def kernel(
        self, category: str, name: str, stream: int, start_ns: int, end_ns: int, external: int,
        args: str, correlation: int, more: str,
    ) -> None:  # fmt: skip
        """A kernel or copy on a stream of the GPU; `args` are before the correlation."""
        self._rows.append(
            (_CALL, self._begin_on_stream(category, name, stream), start_ns - self._base_ns,
             end_ns - start_ns, external, args, correlation, more)
        )  # fmt: skip

    def range_on_stream(
        self, category: str, name: str, stream: int, start_ns: int, end_ns: int, external: int
    ) -> None:
        """An annotation on a stream of the GPU."""
        begin = self._begin_on_stream(category, name, stream)
        self._rows.append((_RANGE, begin, start_ns - self._base_ns, end_ns - start_ns, external))

    def _begin_on_stream(self, category: str, name: str, stream: int) -> str:
        begin = self._moments.get((category, name, stream))
        if begin is None:
            begin = self._moments[category, name, stream] = (
                f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{self.device},'
                f'"tid":{stream},"ts":'
            )
        return begin

    def arrow_start(self, kind: str, flow: int, time_ns: int, thread: Thread) -> None:
        """Leaves a launch for its kernels, or a forward op for its backward node."""
        self._arrow(
            "s", kind, flow, time_ns, f'"pid":{self.process},"tid":{self.number_of(thread)}', ""
        )

    def arrow_end(self, kind: str, flow: int, time_ns: int, process: int, lane: int) -> None:
        """Arrives where `time_ns` begins something on a thread or stream."""
        self._arrow("f", kind, flow, time_ns, f'"pid":{process},"tid":{lane}', ',"bp":"e"')

    def _arrow(self, phase: str, kind: str, flow: int, time_ns: int, lane: str, end: str) -> None:
        self._rows.append((_ARROW, phase, flow, lane, time_ns - self._base_ns, kind, end))

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
        self._rows.append((_MOMENT, begin, time_ns - self._base_ns, args, index))

    def us(self, time_ns: int) -> float:
        """A time as the file gives it: microseconds from its start."""
        return (time_ns - self._base_ns) / 1000

    # -- numbers

    def new_id(self) -> int:
        """The next external id."""
        self._num_ids += 1
        return self._num_ids

    def new_flow(self) -> int:
        """The next number of an arrow between ops."""
        self._num_flows += 1
        return self._num_flows

    def new_function(self) -> int:
        """The next id of a Python function."""
        self._num_functions += 1
        return self._num_functions


def _lines(rows: Iterable[_Row], offset: Counters) -> list[str]:
    """Rows as JSON, with what is added to their numbers."""
    lines: list[str] = []
    time_ns, ids, indices, flows, functions, sequence, correlation = offset
    for row in rows:
        kind = row[0]
        if kind == _OPERATOR:
            _, begin, start, lasts, external, number, thread, args, index = row
            if number is not None:
                tie = f'"Sequence number":{number + sequence},"Fwd thread id":{thread}'
                args = f"{tie},{args}" if args else tie
            lines.append(
                f'{begin}{(start + time_ns) / 1000},"dur":{lasts / 1000},"args":{{"External id":'
                f'{external + ids},"Record function id":0,{args}{"," if args else ""}"Ev Idx":'
                f"{index + indices}}}}}"
            )
        elif kind == _MOMENT:
            _, begin, start, args, index = row
            at = (start + time_ns) / 1000
            lines.append(f'{begin}{at},"args":{{{args},"Ev Idx":{index + indices}}}}}')
        elif kind == _ARROW:
            _, phase, flow, lane, start, name, end = row
            flow += flows if name == FORWARD_ARROW else correlation
            lines.append(
                f'{{"ph":"{phase}","id":{flow},{lane},"ts":{(start + time_ns) / 1000},'
                f'"cat":"{name}","name":"{name}"{end}}}'
            )
        elif kind == _CALL:
            _, begin, start, lasts, external, args, launch, more = row
            lines.append(
                f'{begin}{(start + time_ns) / 1000},"dur":{lasts / 1000},"args":{{"External id":'
                f'{external + ids},{args}"correlation":{launch + correlation}{more}}}}}'
            )
        elif kind == _FUNCTION:
            _, begin, start, lasts, parent, number, args, index = row
            outer = "null" if parent is None else parent + functions
            lines.append(
                f'{begin}{(start + time_ns) / 1000},"dur":{lasts / 1000},"args":{{'
                f'"Python parent id":{outer},"Python id":{number + functions},{args}'
                f'"Ev Idx":{index + indices}}}}}'
            )
        else:
            _, begin, start, lasts, external = row
            lines.append(
                f'{begin}{(start + time_ns) / 1000},"dur":{lasts / 1000},"args":'
                f'{{"External id":{external + ids}}}}}'
            )
    return lines

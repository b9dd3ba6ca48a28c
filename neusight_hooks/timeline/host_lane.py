"""The host's side of a schedule: its clock, its spans, and what encloses ops in them."""

from __future__ import annotations

from neusight.recording.recording import OpCall
from neusight.timeline.spans import (
    AUTOGRAD,
    MAIN,
    HostSpan,
    SpanKind,
    Thread,
    other_thread,
)

#: Begins the name of what the engine wraps around each node.
EVALUATE = "autograd::engine::evaluate_function: "
#: The node of one parameter's gradient, with one op in it; it has no sequence number.
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Holds an op's place until its duration is known.
_UNFINISHED = HostSpan("op", "", 0, 0)


def thread_of(call: OpCall) -> Thread:
    """The lane of an op."""
    if call.phase == "backward":
        return AUTOGRAD
    return other_thread(call.thread) if call.thread else MAIN


class HostLane:
    """What the host does, one thing after the other; all times in nanoseconds.

    `now_ns` is the host's clock, `memory_ns` the time of each allocation and release. With
    `keep=False` no span is kept, and only the clock runs; positions of spans are -1 then.
    """

    def __init__(self, *, keep: bool, node_ns: int) -> None:
        self.now_ns = 0
        self.keep = keep
        self.entry = -1  # position of what happens now in the step's entries
        self.correlation = 0  # of the last runtime call
        self.spans: list[HostSpan] = []
        self.memory_ns: list[int] = []
        self._node_ns = node_ns
        self._open: list[int] = []  # positions of open module and annotation spans
        self._nodes: list[int] = []  # positions of the open autograd node's two spans
        self._node: tuple[str, int | None] | None = None
        self._node_thread = 0  # of the program

    # -- ops and runtime calls

    def reserve(self) -> int:
        """The position of an op whose duration is not known yet."""
        if not self.keep:
            return -1
        self.spans.append(_UNFINISHED)
        return len(self.spans) - 1

    def finish(self, position: int, call: OpCall, start_ns: int) -> None:
        """Ends an op now, at its reserved position."""
        thread = thread_of(call)
        parent = self.parent if thread in (MAIN, AUTOGRAD) else -1
        self.spans[position] = HostSpan(
            "op", call.signature.op, start_ns, self.now_ns - start_ns, thread, parent, call,
            entry=self.entry,
        )  # fmt: skip

    def extend(self, position: int) -> None:
        """Moves the end of an ended span to now."""
        span = self.spans[position]
        self.spans[position] = span._replace(duration_ns=self.now_ns - span.start_ns)

    def call_within(
        self, kind: SpanKind, name: str, op: int, begin_ns: int, duration_ns: int, *,
        thread: Thread, detail: str = "",
    ) -> None:  # fmt: skip
        """Adds a runtime call that an op makes itself."""
        if self.keep:
            span = HostSpan(kind, name, begin_ns, duration_ns, thread, op, None, self.correlation)
            self.spans.append(span._replace(detail=detail, entry=self.entry))

    def runtime(
        self, kind: SpanKind, name: str, duration_ns: int, *, detail: str = "", thread: int = 0
    ) -> int:
        """A runtime call of the program's own, from now on; returns its position."""
        self.correlation += 1
        position = self.add(kind, name, duration_ns, detail=detail, thread=thread)
        self.now_ns += duration_ns
        return position

    def add(
        self, kind: SpanKind, name: str, duration_ns: int, *, detail: str = "", thread: int = 0
    ) -> int:
        """A span that begins now on a thread of the program; the clock stays. Returns its
        position."""
        if not self.keep:
            return -1
        lane, parent = AUTOGRAD if self._nodes else MAIN, self.parent
        if thread and not (self._nodes and thread == self._node_thread):
            lane, parent = other_thread(thread), -1
        correlation = self.correlation if kind in ("event", "launch", "sync") else 0
        span = HostSpan(kind, name, self.now_ns, duration_ns, lane, parent, None, correlation)
        self.spans.append(span._replace(detail=detail, entry=self.entry))
        return len(self.spans) - 1

    # -- what encloses ops: autograd nodes, modules, annotations

    @property
    def parent(self) -> int:
        """Position of the innermost open span, or -1."""
        if self._nodes:
            return self._nodes[-1]
        return self._open[-1] if self._open else -1

    def enter_node(self, call: OpCall, start_ns: int) -> int:
        """Opens the autograd node of a backward op, closes that of the op before; returns when the
        op starts."""
        if call.phase != "backward":
            if self._node is not None:
                self.close_node(start_ns, thread=call.thread)
            return start_ns
        wanted = (call.node, call.sequence_nr) if call.node else None
        if wanted == self._node and call.node != _ACCUMULATE:
            return start_ns
        self.close_node(start_ns)
        if wanted is None:
            return start_ns
        self._node, self._node_thread = wanted, call.thread
        if not self.keep:
            self.now_ns += self._node_ns
            return start_ns
        inner_ns, parent, outer = start_ns + self._node_ns // 2, self.parent, len(self.spans)
        self.spans += (
            HostSpan(
                "node", EVALUATE + call.node, start_ns, 0, AUTOGRAD, parent, call, entry=self.entry
            ),
            HostSpan("node", call.node, inner_ns, 0, AUTOGRAD, outer, call, entry=self.entry),
        )
        self._nodes = [outer, outer + 1]
        self._shift_memory(start_ns, self._node_ns)
        self.now_ns += self._node_ns
        return start_ns + self._node_ns

    def close_node(self, end_ns: int | None = None, *, thread: int | None = None) -> None:
        """Ends the open autograd node, now or when it really ended; with `thread`, where it runs
        for that thread of the program, which does something else now."""
        if thread is not None and thread != self._node_thread:
            return
        self._node = None
        if not self._nodes:
            return
        end = self.now_ns if end_ns is None else end_ns
        for position in self._nodes:
            span = self.spans[position]
            self.spans[position] = span._replace(duration_ns=end - span.start_ns)
        self._nodes = []

    def begin(self, kind: SpanKind, name: str, detail: str) -> None:
        """Opens a module or an annotation."""
        if self.keep:
            self._open.append(self.add(kind, name, 0, detail=detail))

    def end(self, kind: SpanKind, name: str) -> None:
        """Ends the innermost such span, and with it what an exception left open inside."""
        matches = [
            level
            for level, position in enumerate(self._open)
            if self.spans[position].kind == kind and self.spans[position].name == name
        ]
        while matches and len(self._open) > matches[-1]:
            self.extend(self._open.pop())

    def close_all(self) -> None:
        """Ends all open spans."""
        self.close_node()
        while self._open:
            self.extend(self._open.pop())

    def end_step(self) -> None:
        """Ends all open spans, and opens the modules and annotations again."""
        reopen = [self.spans[position] for position in self._open]
        self.close_all()
        self.entry = 0
        for span in reopen:
            self.begin(span.kind, span.name, span.detail)

    def _shift_memory(self, start_ns: int, shift_ns: int) -> None:
        """Moves the allocations of the op that follows into its node."""
        times = self.memory_ns
        index = len(times) - 1
        while index >= 0 and times[index] > start_ns:
            times[index] += shift_ns
            index -= 1

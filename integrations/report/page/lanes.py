"""The lanes of a timeline: steps, phases, modules, streams and threads, as spans to be drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from neusight.integrations.report.page.colours import kind_of
from neusight.predictors.formatting import time_text
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.timeline.operators.tree import with_operators
from neusight.timeline.spans import (
    HostSpan,
    KernelSpan,
    StepSpan,
    Thread,
    Timeline,
    number_of_thread,
)
from neusight.timeline.steady import kernels_of

_NS_PER_US = 1000
_KIND_OF_HOST = {"sync": "wait", "work": "wait", "module": "module", "annotation": "module"}
#: Rows of the modules' lane: how many parts of their paths are distinguished.
_MODULE_ROWS = 4
#: Short spans are joined up to this many times what counts as short, so that colours stay apart.
_LONGEST_JOINED = 4
#: The first length that counts as short, where there are too many spans.
_SHORT_NS = 500


class Drawn(NamedTuple):
    """A span on a lane, in nanoseconds from the begin of the step. Where several are drawn as one,
    `name` is that of the longest of those it `stands_for`."""

    start_ns: int
    duration_ns: int
    row: int
    name: str
    kind: str
    detail: str = ""
    where: str = ""
    stands_for: int = 1

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns

    @property
    def label(self) -> str:
        """What is read on it."""
        more = self.stands_for - 1
        return f"{self.name} and {more:,} more" if more else self.name


class Lane(NamedTuple):
    """Spans below a name, in rows; one that `is_optional` is shown where the reader asks for it."""

    name: str
    spans: Sequence[Drawn]
    is_optional: bool = False

    @property
    def num_rows(self) -> int:
        """How many rows it takes."""
        return max((span.row + 1 for span in self.spans), default=0)


class Lanes(NamedTuple):
    """A step from 0 to `end_ns`; the host begins it at `start_ns`, at 0 or before. Steps begin and
    end at the `boundaries`."""

    start_ns: int
    end_ns: int
    boundaries: tuple[int, ...]
    lanes: tuple[Lane, ...]


def lanes_of(timeline: Timeline, step: StepSpan) -> Lanes:
    """All that happens in a step; time 0 is when the GPU is done with the step before: before it,
    the host runs ahead."""
    begin_ns = step.done_ns - step.latency_ns
    host = timeline.host[step.first_host : step.last_host]
    own = kernels_of(step, timeline)
    backlog = [k for k in timeline.kernels[: step.first_kernel] if k.end_ns > step.start_ns]
    steps = list(_steps(timeline, step, begin_ns))
    return Lanes(
        start_ns=step.start_ns - begin_ns,
        end_ns=step.latency_ns,
        boundaries=tuple(sorted(span.end_ns for span in steps)),
        lanes=(
            Lane("steps", steps),
            *work_lanes(own, begin_ns),
            *_stream_lanes(own, backlog, step.start_ns, begin_ns),
            *(
                Lane(f"host, {thread}{'' if number_of_thread(thread) else ' thread'}", spans)
                for thread, spans in _host_threads(host, step.first_host, begin_ns).items()
            ),
        ),
    )


def operator_lanes(timeline: Timeline, step: StepSpan) -> tuple[Lane, ...]:
    """The operators around the ops of a step and below them, a lane for each thread."""
    begin_ns = step.done_ns - step.latency_ns
    threads = _host_threads(with_operators(timeline, [step]).host, 0, begin_ns)
    return tuple(
        Lane(f"operators, {thread} thread", spans, is_optional=True)
        for thread, spans in threads.items()
    )


def _steps(timeline: Timeline, step: StepSpan, begin_ns: int) -> Iterator[Drawn]:
    """The step, and those before it on which the GPU still works when the host begins it."""
    before = [span for span in timeline.steps if span.done_ns <= begin_ns]
    for age, span in enumerate(reversed(before), start=1):
        start_ns = max(step.start_ns, span.done_ns - span.latency_ns)
        if span.done_ns <= step.start_ns:
            break
        name = "the step before" if age == 1 else f"{age} steps before"
        yield Drawn(start_ns - begin_ns, span.done_ns - start_ns, 0, name, "before")
    yield Drawn(0, step.latency_ns, 0, "the steady step", "step")


def work_lanes(kernels: Sequence[KernelSpan], begin_ns: int) -> Iterator[Lane]:
    """What the busiest stream works for: phases, and modules by the parts of their paths."""
    busy: dict[int, int] = defaultdict(int)
    for span in kernels:
        busy[span.stream] += span.duration_ns
    if not busy:
        return
    main = max(sorted(busy), key=lambda stream: busy[stream])
    spans = [span for span in kernels if span.stream == main]
    stretches = _stretches(spans, lambda span: span.call.phase, begin_ns)
    yield Lane("phases, on the GPU", [Drawn(s, d, 0, phase, phase) for phase, s, d in stretches])
    modules: list[Drawn] = []
    for row in range(_MODULE_ROWS):
        for path, start_ns, duration_ns in _stretches(spans, _part_of_path(row), begin_ns):
            if path:
                name = path.rpartition(".")[2]
                modules.append(Drawn(start_ns, duration_ns, row, name, "module", "", path))
    if modules:
        yield Lane("modules, on the GPU", modules)


def _part_of_path(row: int) -> Callable[[KernelSpan], str]:
    """The first parts of the path of a kernel's module, in its phase; empty if it has fewer."""

    def part(span: KernelSpan) -> str:
        parts = span.call.module.split(".", row + 1)
        return ".".join(parts[: row + 1]) if len(parts) > row else ""

    return part


def _stretches(
    spans: Sequence[KernelSpan], name: Callable[[KernelSpan], str], begin_ns: int
) -> Iterator[tuple[str, int, int]]:
    """Kernels in a row of one name and phase: name, start and duration."""
    for (found, _), group in groupby(spans, key=lambda span: (name(span), span.call.phase)):
        members = list(group)
        start_ns, end_ns = members[0].start_ns, members[-1].end_ns
        yield found, start_ns - begin_ns, end_ns - start_ns


def _stream_lanes(
    own: Sequence[KernelSpan], backlog: Sequence[KernelSpan], start_ns: int, begin_ns: int
) -> Iterator[Lane]:
    """A lane for each stream; kernels of the steps before are those that the host runs ahead of."""
    lanes: dict[int, list[Drawn]] = defaultdict(list)
    for position, span in enumerate([*backlog, *own]):
        at_ns = max(start_ns, span.start_ns)
        kind = "before" if position < len(backlog) else kind_of(span.kernel.kernel_class)
        estimate = span.estimate
        detail = (
            f"{problem_text(span.kernel)}\n{range_text(estimate)} (80 %), "
            f"{estimate.bound}-bound, {estimate.origin}"
        )
        where = f"{span.call.signature.op} in {span.call.module or '(no module)'}"
        lanes[span.stream].append(
            Drawn(at_ns - begin_ns, span.end_ns - at_ns, 0, span.kernel.name, kind, detail, where)
        )
    for stream in sorted(lanes):
        yield Lane(f"GPU, stream {stream}", lanes[stream])


def _host_threads(host: Sequence[HostSpan], first: int, begin_ns: int) -> dict[Thread, list[Drawn]]:
    """The spans of each thread; what lies in another span lies a row below it."""
    depths: dict[int, int] = {}
    lanes: dict[Thread, list[Drawn]] = defaultdict(list)
    for position, span in enumerate(host, start=first):
        above = depths.get(span.parent, -1)
        if span.parent >= first and host[span.parent - first].thread != span.thread:
            above = -1
        depths[position] = above + 1
        kind = _KIND_OF_HOST.get(span.kind, "op")
        module = span.call.module if span.call is not None else span.detail
        lanes[span.thread].append(
            Drawn(span.start_ns - begin_ns, span.duration_ns, depths[position], span.name, kind, "",
                  module)
        )  # fmt: skip
    rows = {
        thread: {row: number for number, row in enumerate(sorted({span.row for span in spans}))}
        for thread, spans in lanes.items()
    }
    return {
        thread: [span._replace(row=rows[thread][span.row]) for span in spans]
        for thread, spans in lanes.items()
    }


def range_text(estimate: Estimate) -> str:
    """Between what a kernel's time lies."""
    return f"{time_text(estimate.low_us)} to {time_text(estimate.high_us)}"


def problem_text(kernel: Kernel) -> str:
    """What a kernel computes: its class, sizes and type."""
    sizes = ", ".join(
        f"{name} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in kernel.size._asdict().items()
    )
    return f"{kernel.kernel_class.value}: {sizes}, {kernel.dtype}"


# -- fewer spans ---------------------------------------------------------------------------------


def coarsened(lanes: Sequence[Lane], most: int) -> tuple[list[Lane], int]:
    """At most `most` spans, and the length in nanoseconds below which neighbours are drawn as one;
    0 where all are drawn."""
    found, short_ns = list(lanes), 0
    while sum(len(lane.spans) for lane in found) > most:
        short_ns = max(_SHORT_NS, 2 * short_ns)
        found = [lane._replace(spans=_joined(lane.spans, short_ns)) for lane in found]
        if all(len(lane.spans) <= lane.num_rows for lane in found):
            break
    return found, short_ns


def _joined(spans: Sequence[Drawn], short_ns: int) -> list[Drawn]:
    """Neighbours of a row that are short, with short gaps, as one span."""
    rows: dict[int, list[Drawn]] = defaultdict(list)
    for span in spans:
        rows[span.row].append(span)
    return [drawn for row in sorted(rows) for drawn in _joined_row(rows[row], short_ns)]


def _joined_row(spans: Iterable[Drawn], short_ns: int) -> Iterator[Drawn]:
    run: list[Drawn] = []
    end_ns = 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        is_short = span.duration_ns < short_ns
        fits = run and span.end_ns - run[0].start_ns <= _LONGEST_JOINED * short_ns
        if run and not (is_short and fits and span.start_ns - end_ns < short_ns):
            yield _one(run)
            run = []
        if is_short:
            run.append(span)
            end_ns = max(end_ns, span.end_ns)
        else:
            yield span
    if run:
        yield _one(run)


def _one(run: Sequence[Drawn]) -> Drawn:
    """Spans drawn as one, in the colour of the kind that takes longest."""
    if len(run) == 1:
        return run[0]
    times: dict[str, int] = defaultdict(int)
    for span in run:
        times[span.kind] += span.duration_ns
    kind = max(sorted(times), key=lambda name: times[name])
    start_ns, end_ns = run[0].start_ns, max(span.end_ns for span in run)
    longest = max(run, key=lambda span: span.duration_ns)
    count = sum(span.stands_for for span in run)
    return longest._replace(
        start_ns=start_ns, duration_ns=end_ns - start_ns, kind=kind, detail="", stands_for=count
    )

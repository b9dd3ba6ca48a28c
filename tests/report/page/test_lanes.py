"""Lanes that hold fewer spans than were scheduled, for a page that stays small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.report.page.lanes import (
    Drawn,
    Lane,
    _host_threads,
    coarsened,
    lanes_of,
)
from neusight.timeline.spans import HostSpan, KernelSpan, SpanKind, StepSpan, Timeline
from timelines import kernel_span, op, step_span


def lane(num_spans: int, *, length_ns: int = 1000, gap_ns: int = 100) -> Lane:
    step = length_ns + gap_ns
    return Lane(
        "GPU", [Drawn(n * step, length_ns, 0, f"k{n % 3}", "gemm") for n in range(num_spans)]
    )


def test_a_lane_has_a_row_for_each_depth_and_none_where_it_is_empty() -> None:
    assert Lane("host", [Drawn(0, 1, 2, "op", "op")]).num_rows == 3
    assert Lane("host", []).num_rows == 0


def test_few_spans_stay_as_they_are() -> None:
    found = lane(50)

    assert coarsened([found], 50) == ([found], 0)


def test_many_short_ones_become_few_that_cover_the_same_time() -> None:
    [found], short_ns = coarsened([lane(10_000)], 500)

    assert 100 < len(found.spans) <= 500
    assert short_ns > 1000
    assert sum(span.stands_for for span in found.spans) == 10_000
    assert (found.spans[0].start_ns, found.spans[-1].end_ns) == (0, 10_000 * 1100 - 100)
    assert all(a.end_ns < b.start_ns for a, b in zip(found.spans, found.spans[1:], strict=False))


def test_a_long_one_among_short_ones_keeps_its_name_and_its_place() -> None:
    spans = [*lane(2000).spans, Drawn(3_000_000, 9_000_000, 0, "long", "attention", "d", "w")]

    [found], _ = coarsened([Lane("GPU", spans)], 100)

    assert found.spans[-1] == spans[-1]


def test_what_takes_longest_gives_the_colour_and_the_name() -> None:
    spans = [Drawn(0, 100, 0, "short", "copy"), Drawn(100, 300, 0, "longer", "gemm")]

    [found], _ = coarsened([Lane("GPU", spans)], 1)

    assert found.spans == [Drawn(0, 400, 0, "longer", "gemm", stands_for=2)]


def test_rows_are_never_joined_with_each_other() -> None:
    spans = [Drawn(at * 10, 9, row, f"{row}", "op") for at in range(100) for row in range(3)]

    [found], _ = coarsened([Lane("host", spans)], 2)

    assert {span.row for span in found.spans} == {0, 1, 2}
    assert found.num_rows == 3


def kernel(module: str, start_ns: int, duration_ns: int, *, stream: int = 0) -> KernelSpan:
    span = kernel_span(call=op(module=module))
    return span._replace(start_ns=start_ns, duration_ns=duration_ns, stream=stream)


def host(name: str, thread: str = "main", parent: int = -1, kind: SpanKind = "op") -> HostSpan:
    return HostSpan(kind, name, 4000, 100, thread, parent)


def steady(start_ns: int, done_ns: int, latency_ns: int, kernels: tuple[int, int]) -> StepSpan:
    return replace(
        step_span(kernels=kernels),
        start_ns=start_ns, end_ns=done_ns, done_ns=done_ns, latency_ns=latency_ns,
        first_host=0, last_host=7,
    )  # fmt: skip


def rows(found: Lane) -> list[tuple[int, int, int, str]]:
    return [(span.row, span.start_ns, span.duration_ns, span.name) for span in found.spans]


def test_what_another_thread_began_lies_in_the_first_row_of_its_own() -> None:
    spans = [
        host("forward"), host("begun", "thread 1", parent=10),
        host("within", "thread 1", parent=11), host("own", "thread 1"),
    ]  # fmt: skip

    found = _host_threads(spans, 10, 0)

    assert [(span.name, span.row) for span in found["thread 1"]] == [
        ("begun", 0), ("within", 1), ("own", 0)
    ]  # fmt: skip
    assert _host_threads(spans[1:2], 11, 0)["thread 1"][0].row == 0  # its parent is not shown


def test_a_step_begins_where_the_gpu_is_done_with_the_one_before() -> None:
    """The host begins it at 4000, while the GPU works for two steps before until 5000."""
    kernels = (
        kernel("A", 3000, 900),
        kernel("A", 3900, 1100),
        kernel("Net.a.x.y.z", 5000, 100),
        kernel("Net.a", 5100, 200),
        kernel("Net.b", 5400, 300, stream=7),
        kernel("Net.b", 5500, 100),
        kernel("", 5600, 100),
    )
    spans = (
        host("forward", kind="module"), host("mm", parent=0), host("item", parent=1, kind="sync"),
        host("other", "thread 1", parent=0), host("node", "autograd", kind="node"),
        host("late", "autograd", parent=4), host("alone"),
    )  # fmt: skip
    steps = (
        steady(0, 3000, 3000, (0, 0)),
        steady(1000, 4200, 1200, (0, 0)),
        steady(2000, 5000, 800, (0, 2)),
        steady(4000, 6000, 1000, (2, 7)),
    )
    found = lanes_of(Timeline(spans, kernels, steps, 6000), steps[-1])

    assert (found.start_ns, found.end_ns, found.boundaries) == (-1000, 1000, (-800, 0, 1000))
    assert {lane.name: rows(lane) for lane in found.lanes} == {
        "steps": [
            (0, -800, 800, "the step before"),
            (0, -1000, 200, "2 steps before"),
            (0, 0, 1000, "the steady step"),
        ],
        "phases, on the GPU": [(0, 0, 700, "forward")],
        "modules, on the GPU": [
            (0, 0, 600, "Net"),
            (1, 0, 300, "a"), (1, 500, 100, "b"),
            (2, 0, 100, "x"),
            (3, 0, 100, "y"),
        ],
        "GPU, stream 0": [
            (0, -1000, 1000, "relu"),
            *((0, at, 100 + 100 * (at == 100), "relu") for at in (0, 100, 500, 600)),
        ],
        "GPU, stream 7": [(0, 400, 300, "relu")],
        "host, main thread": [
            (0, -1000, 100, "forward"), (1, -1000, 100, "mm"), (2, -1000, 100, "item"),
            (0, -1000, 100, "alone"),
        ],
        "host, thread 1": [(0, -1000, 100, "other")],
        "host, autograd thread": [(0, -1000, 100, "node"), (1, -1000, 100, "late")],
    }  # fmt: skip
    assert [span.kind for span in found.lanes[3].spans[:2]] == ["before", "pointwise"]
    assert [lane.num_rows for lane in found.lanes] == [1, 1, 4, 1, 1, 3, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "gap_ns", "short_ns", "joined"),
    [
        ([400, 400, 499], 100, 500, [3]),
        ([400, 500, 400], 100, 1000, [3]),  # the one in the middle is not short at first
        ([400, 400, 400], 400, 500, [3]),  # 2000 ns: four times what is short
        ([400, 400, 401], 400, 500, [2, 1]),
        ([400, 400, 400], 500, 1000, [3]),  # the gaps are not short at first
    ],
)
def test_short_spans_with_short_gaps_are_drawn_as_one(
    lengths: list[int], gap_ns: int, short_ns: int, joined: list[int]
) -> None:
    starts = [sum(lengths[:at]) + at * gap_ns for at in range(len(lengths))]
    spans = [Drawn(at, length, 0, "", "op") for at, length in zip(starts, lengths, strict=True)]

    [found], short = coarsened([Lane("GPU", spans)], 2)

    assert (short, [span.stands_for for span in found.spans]) == (short_ns, joined)


@pytest.mark.parametrize(("most", "short_ns"), [(8, 0), (7, 1000), (2, 1000), (1, 4000)])
def test_what_is_short_doubles_until_few_enough_are_left(most: int, short_ns: int) -> None:
    assert coarsened([lane(8, length_ns=900, gap_ns=0)], most)[1] == short_ns


def test_a_joined_span_says_how_many_more_it_is() -> None:
    [found], _ = coarsened([Lane("GPU", lane(1501, length_ns=1, gap_ns=0).spans)], 1)

    assert [span.label for span in found.spans] == ["k0 and 1,500 more"]

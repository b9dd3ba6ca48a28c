"""Lanes that hold fewer spans than were scheduled, for a page that stays small."""

from __future__ import annotations

from neusight.integrations.report.page.lanes import Drawn, Lane, coarsened


def lane(num_spans: int, *, length_ns: int = 1000, gap_ns: int = 100) -> Lane:
    step = length_ns + gap_ns
    return Lane(
        "GPU", [Drawn(n * step, length_ns, 0, f"k{n % 3}", "gemm") for n in range(num_spans)]
    )


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

"""Candidates in order: by time, by cost, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanPoint
from neusight.integrations.cli.planning.ranking import Ranking, interim_text
from neusight.integrations.program.program import Program
from neusight.integrations.report.side_by_side import SideBySideRow

GIB = 2**30
TRAIN = Program("train.py", ())
SMALL, LARGE = (Candidate((("batch", batch),), TRAIN) for batch in ("1", "8"))


def row(
    gpu: str, ms: float, *, tokens: int | None = 1000, ranks: int = 4, price: float | None = None
) -> SideBySideRow:
    rate = None if tokens is None else tokens / ms * 1e3
    cost = None if price is None else price * ranks * ms / 3600e3
    return SideBySideRow(
        gpu=gpu, latency_us=ms * 1e3, low_us=ms * 900, high_us=ms * 1100, bound="compute",
        mfu=0.4, fits=True, used_bytes=10 * GIB, capacity_bytes=80 * GIB, trained=1.0,
        samples_per_second=None, tokens_per_second=rate, price_per_hour=price,
        cost_per_thousand_steps=None if cost is None else cost * 1e3,
        cost_per_million_samples=None,
        cost_per_million_tokens=None if cost is None or tokens is None else cost / tokens * 1e6,
        memory_verdict="fits", world_size=ranks,
    )  # fmt: skip


def point(candidate: Candidate, found: SideBySideRow, problem: str = "") -> PlanPoint:
    return PlanPoint(candidate, found.gpu, found, 500.0, problem)


def of_input(found: SideBySideRow, source: str) -> SideBySideRow:
    return replace(found, batch_source=source)


@pytest.mark.parametrize(
    ("small", "large", "unit", "is_large_first"),
    [
        (row("H100", 10), row("H100", 40, tokens=8000), "tokens", True),
        (row("H100", 10, tokens=None), row("H100", 40, tokens=8000), "steps", False),
        (  # known by other means
            of_input(row("H100", 233e-3, tokens=8), "input"),
            of_input(row("H100", 406e-3, tokens=8192), "graph"),
            "steps",
            False,
        ),
    ],
)
def test_candidates_are_compared_by_what_they_take_in_or_by_steps(
    small: SideBySideRow, large: SideBySideRow, unit: str, is_large_first: bool
) -> None:
    first, second = point(SMALL, small), point(LARGE, large)

    ranking = Ranking((SMALL, LARGE), (second, first))

    assert ranking.ranked == ([second, first] if is_large_first else [first, second])
    document = ranking.to_json()
    assert (document["schema_version"], document["unit"]) == (1, unit)


def test_without_prices_the_cost_is_gpu_hours() -> None:
    four, sixteen = point(SMALL, row("H100", 10)), point(LARGE, row("H100", 4, ranks=16))

    by_time = Ranking((SMALL, LARGE), (four, sixteen))
    by_cost = Ranking((SMALL, LARGE), (four, sixteen), "cost")

    assert by_time.ranked == [sixteen, four]
    assert by_cost.ranked == [four, sixteen]
    header, first, *_ = by_cost.text().splitlines()
    assert header.endswith("GPU h, 1M tokens")
    # 4 GPUs for 10 ms a thousand tokens: 40 s for a million.
    assert float(first.split()[-1]) == pytest.approx(40 / 3600, rel=1e-2)


def test_the_table_shows_a_candidate_in_a_row() -> None:
    few, many = point(SMALL, row("H100", 81, tokens=None)), point(LARGE, row("H100", 50))

    by_steps, by_tokens = Ranking((SMALL,), (few,)), Ranking((LARGE,), (many,))

    lines = [line.split("  ") for it in (by_steps, by_tokens) for line in it.text().splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    # 4 GPUs for 1000 steps of 0.081 s; for a million tokens, 1000 in 0.05 s.
    assert cells[:2] == [
        ["rank", "batch", "GPU", "ms a step", "80 % range", "steps/s", "MFU", "exposed", "GiB",
         "fits", "GPU h, 1000 steps"],
        ["1", "1", "H100", "81.00", "72.90 to 89.10", "12", "40.0%", "0.50", "10.0 of 80", "yes",
         "0.09"],
    ]  # fmt: skip
    assert (cells[5][5], cells[5][-1]) == ("20,000", "0.0556")


@pytest.mark.parametrize(("ms", "rate"), [(100, "10"), (100.4, "9.96"), (0.1, "10,000")])
def test_a_rate_below_ten_has_three_digits(ms: float, rate: str) -> None:
    table = Ranking((SMALL,), (point(SMALL, row("H100", ms, tokens=None)),)).text()

    assert table.splitlines()[1].split()[7] == rate


def test_candidates_are_compared_by_samples_where_not_all_have_tokens() -> None:
    def of_samples(ms: float, price: float | None) -> SideBySideRow:
        found = row("H100", ms, tokens=None, price=price)
        return replace(found, samples_per_second=8e3 / ms, cost_per_million_samples=price)

    found = [point(SMALL, of_samples(10, 2.0)), point(LARGE, of_samples(5, 3.0))]
    by_cost = Ranking((SMALL, LARGE), tuple(found), "cost")

    assert by_cost.ranked == found
    assert by_cost.to_json()["unit"] == "samples"
    header, *lines = by_cost.text().splitlines()
    assert header.endswith("cost, 1M samples")
    assert [line.split()[-1] for line in lines[:2]] == ["2", "3"]
    half = replace(found[1], row=of_samples(5, None))  # one has no price: GPU-hours of both
    assert Ranking((SMALL, LARGE), (found[0], half), "cost").ranked == [half, found[0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_whose_figures_they_are_is_said_of_several_ranks(ranks: int) -> None:
    text = Ranking((SMALL,), (point(SMALL, row("H100", 10, ranks=ranks)),)).text()

    assert ("rates and costs are those of all ranks" in text) is (ranks > 1)


def test_memory_that_is_not_known_is_shown_as_none_and_what_is_close_says_so() -> None:
    close = point(SMALL, replace(row("H100", 1234.5), used_bytes=None, memory_verdict="close"))

    line = Ranking((SMALL,), (close,)).text().splitlines()[1]

    assert "0.0 of 80  close" in line
    assert interim_text([close]) == "batch 1 on H100: 1,234.50 ms a step, close (may not fit)"


def test_prices_decide_what_is_cheapest() -> None:
    fast = point(SMALL, row("B200", 5, price=10.0))
    cheap = point(SMALL, row("H100", 10, price=2.0))

    ranking = Ranking((SMALL,), (fast, cheap))

    assert "fastest: batch 1 on B200; cheapest: batch 1 on H100" in ranking.text()
    assert "cost, 1M tokens" in ranking.text()


def test_what_does_not_fit_or_failed_is_left_out_with_the_reason() -> None:
    fits = point(SMALL, row("H100", 10))
    large = point(LARGE, row("H100", 1), "does not fit: 96.0 GiB of 79.2 GiB")
    failed = PlanPoint(LARGE, problem="failed: no such batch")

    ranking = Ranking((SMALL, LARGE), (fits, large, failed))
    text = ranking.text().splitlines()

    assert ranking.ranked == [fits]
    assert text[text.index("left out") + 1 :] == [
        "  batch 8 on H100: does not fit: 96.0 GiB of 79.2 GiB",
        "  batch 8: failed: no such batch",
    ]
    assert [item["problem"] for item in ranking.to_json()["excluded"]] == [
        "does not fit: 96.0 GiB of 79.2 GiB", "failed: no such batch",
    ]  # fmt: skip


def test_none_that_fits_is_reported() -> None:
    ranking = Ranking((SMALL,), (point(SMALL, row("T4", 1), "does not fit: much"),))

    assert ranking.text().startswith("none of these fits\n")
    assert ranking.to_json()["points"] == []
    assert Ranking((SMALL,), ()).text().startswith("nothing was done\n")


def test_what_was_not_done_is_named() -> None:
    ranking = Ranking((SMALL, LARGE), (point(SMALL, row("H100", 10)),))

    assert ranking.text().endswith("not done when it was interrupted\n  batch 8")
    assert ranking.to_json()["unfinished"] == [{"batch": "8"}]


def test_the_order_does_not_depend_on_what_ended_first() -> None:
    points = [point(SMALL, row("H100", 10)), point(LARGE, row("H100", 10))]

    assert Ranking((SMALL, LARGE), tuple(points)).ranked == points


def test_a_candidate_is_reported_as_soon_as_it_is_done() -> None:
    points = [point(SMALL, row("H100", 10)), point(SMALL, row("T4", 1), "does not fit: much")]

    assert interim_text(points) == (
        "batch 1 on H100: 10.00 ms a step; batch 1 on T4: does not fit: much"
    )

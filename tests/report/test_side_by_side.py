"""Several GPUs side by side: figures, costs, and what is not known is not printed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report
from neusight.integrations.report.side_by_side import (
    SideBySide,
    SideBySideRow,
    lay_side_by_side,
    parse_prices,
    text_table,
)
from neusight.output.figures import StepLatency
from neusight.predictors.errors import OptionError, UnknownGPUError
from neusight.recording.recording import Batch


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    with neusight.forecast_on("H100") as made:
        model = nn.Sequential(nn.Embedding(50, 256), nn.Linear(256, 256)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.zeros(8, 125, dtype=torch.long, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return made


def test_cost_is_price_times_time(forecast: Forecast) -> None:
    [row] = lay_side_by_side([forecast], {"H100": 3.6}).rows

    # 3.6 an hour is 0.001 a second, 1e-9 a microsecond.
    assert row.cost_per_thousand_steps == pytest.approx(row.latency_us * 1e-9 * 1000)
    assert row.tokens_per_second == pytest.approx(1000 / row.latency_us * 1e6)
    assert row.samples_per_second == pytest.approx(8 / row.latency_us * 1e6)
    assert row.cost_per_million_tokens == pytest.approx(row.latency_us * 1e-9 * 1000)


def test_each_gpu_has_its_row_in_the_order_asked(forecast: Forecast) -> None:
    compared = lay_side_by_side([forecast, forecast.on("T4"), forecast.on("A100")])

    assert [row.gpu for row in compared.rows] == ["H100-SXM5-80GB", "T4", "A100-SXM4-80GB"]
    for row, made in zip(compared.rows, [forecast, forecast.on("T4")], strict=False):
        assert (row.latency_us, row.low_us, row.high_us) == made.step_latency_us
        assert row.used_bytes == made.peak_reserved_bytes + made.context_bytes


def test_a_model_that_generates_has_its_two_times_beside_the_step() -> None:
    with neusight.forecast_on("H100") as made, torch.no_grad():
        model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)).cuda()
        ids = torch.zeros(2, 512, dtype=torch.long, device="cuda")
        for _ in range(8):
            ids = model(ids)[:, -1:].argmax(-1)

    compared = lay_side_by_side([made, made.on("A100")])

    assert made.phases is not None
    assert compared.rows[0].ttft_us == made.phases.ttft_us
    assert compared.rows[0].tpot_us == made.phases.tpot_us[1]
    assert "TTFT ms" in compared.table()
    assert f"{made.phases.ttft_us / 1e3:.3g}" in compared.table()
    page = html_report([made])
    assert "to the first token (TTFT); 2 x 512 tokens" in page
    assert "a token (TPOT) at 519 tokens of context" in page


def test_no_price_prints_no_cost(forecast: Forecast) -> None:
    compared = lay_side_by_side([forecast, forecast.on("A100")])

    assert "1M tokens" not in compared.table()
    assert compared.cheapest is None
    assert compared.words().startswith("fastest: ")


def test_a_gpu_without_a_price_shows_a_dash(forecast: Forecast) -> None:
    compared = lay_side_by_side([forecast, forecast.on("A100")], {"A100": 1.0})

    assert "-" in compared.table().splitlines()[1].split()
    assert "cheapest" not in compared.words()


def test_the_cheapest_is_reported_of_two_prices(forecast: Forecast) -> None:
    compared = lay_side_by_side([forecast, forecast.on("A100")], {"A100": 0.01, "H100": 9})

    assert compared.words().endswith("cheapest a step: A100-SXM4-80GB")


def test_a_gpu_on_which_it_does_not_fit_is_never_the_fastest(forecast: Forecast) -> None:
    from dataclasses import replace

    from neusight.predictors.gpu import find_gpu

    tiny = replace(
        find_gpu("B200"), name="tiny", aliases=(), memory_bytes=find_gpu("B200").context_bytes // 2
    )
    compared = lay_side_by_side([forecast.on(tiny), forecast])

    assert [row.fits for row in compared.rows] == [False, True]
    assert compared.fastest is compared.rows[1]
    assert "NO" in compared.table()


def test_markdown_has_as_many_cells_in_each_line(forecast: Forecast) -> None:
    lines = lay_side_by_side([forecast], {"H100": 2}).to_markdown().splitlines()

    assert len({line.count("|") for line in lines}) == 1


def test_samples_are_shown_where_tokens_are_not_known(forecast: Forecast) -> None:
    assert "samples/s" not in lay_side_by_side([forecast]).table()
    assert "tokens/s" in lay_side_by_side([forecast]).table()


def test_prices_are_of_any_spelling_and_add_up() -> None:
    assert parse_prices(["h100=2.49, L40S=0.8,", "A100=1"]) == {
        "H100-SXM5-80GB": 2.49,
        "L40S": 0.8,
        "A100-SXM4-80GB": 1.0,
    }


@pytest.mark.parametrize("text", ["H100", "H100=", "H100=cheap", "H100=-1", "H100=nan", "=2"])
def test_what_is_no_price_is_reported(text: str) -> None:
    with pytest.raises((OptionError, UnknownGPUError)):
        parse_prices([text])


def test_a_price_of_an_unknown_gpu_names_near_misses() -> None:
    with pytest.raises(UnknownGPUError, match="Did you mean 'H100'"):
        parse_prices(["H10=2"])


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    table = text_table(["a", "b"], [["long name", "1"], ["x", "1000"]])

    assert table == "a             b\nlong name     1\nx          1000"


def test_rates_and_costs_of_many_ranks_are_those_of_all() -> None:
    with neusight.forecast_on("H100", world_size=2) as made:
        embedding = nn.Embedding(50, 256).cuda()
        embedding(torch.zeros(8, 125, dtype=torch.long, device="cuda"))

    compared = lay_side_by_side([made], {"H100": 3.6})
    [row] = compared.rows

    assert row.tokens_per_second == pytest.approx(2 * 1000 / row.latency_us * 1e6)
    assert row.cost_per_thousand_steps == pytest.approx(2 * row.latency_us * 1e-9 * 1000)
    assert row.cost_per_million_tokens == pytest.approx(row.latency_us * 1e-9 * 1000)
    assert compared.words() == "rates and costs are those of all 2 ranks"


def test_equally_fast_gpus_are_all_named_with_the_reason() -> None:
    row = SideBySideRow(
        "A", 1000.0, 900.0, 1100.0, "host", 0.1, True, 1, 2, 0.5, None, None, None, None, None,
        None, "fits", 1,
    )  # fmt: skip
    equal, slower = (
        replace(row, gpu="B", latency_us=1004.0),
        replace(row, gpu="C", latency_us=1006.0),
    )

    assert SideBySide((row, equal, slower)).words() == "equally fast: A, B (host-bound)"
    assert SideBySide((row, replace(equal, bound="memory"))).words() == "equally fast: A, B"
    assert SideBySide((row, slower)).words() == "fastest: A"


PLAIN = SideBySideRow(
    gpu="A", latency_us=1500.0, low_us=999.0, high_us=123_456.0, bound="host", mfu=0.12345,
    fits=True, used_bytes=3 * 2**29, capacity_bytes=80 * 2**30, trained=0.5,
    samples_per_second=None, tokens_per_second=None, price_per_hour=None,
    cost_per_thousand_steps=None, cost_per_million_samples=None, cost_per_million_tokens=None,
    memory_verdict="fits", world_size=1,
)  # fmt: skip


def test_the_table_in_full() -> None:
    generating = replace(
        PLAIN, gpu="B", memory_verdict="close", used_bytes=None, ttft_us=2500.0, tpot_us=999.4,
        samples_per_second=1000.0, price_per_hour=1.0, cost_per_thousand_steps=0.1234,
        cost_per_million_samples=999.99,
    )  # fmt: skip
    tokens = replace(
        generating, tokens_per_second=12_345.6, cost_per_million_tokens=0.99999, ttft_us=None
    )

    assert SideBySide((PLAIN, generating)).table().splitlines() == [
        "GPU  ms a step        80 % range  bound    MFU  trained        GiB   fits  TTFT ms"
        "  TPOT ms  samples/s  price/h  1000 steps  1M samples",
        "A         1.50  0.9990 to 123.46   host  12.3%      50%  1.5 of 80    yes        -"
        "        -          -        -           -           -",
        "B         1.50  0.9990 to 123.46   host  12.3%      50%    ? of 80  close     2.50"
        "    0.999      1,000     1.00       0.123      999.99",
    ]
    assert SideBySide((PLAIN, tokens)).to_markdown().splitlines() == [
        "| GPU | ms a step | 80 % range | bound | MFU | trained | GiB | fits | TPOT ms | tokens/s |"
        " price/h | 1000 steps | 1M tokens |",
        "| --- |" + " ---: |" * 12,
        "| A | 1.50 | 0.9990 to 123.46 | host | 12.3% | 50% | 1.5 of 80 | yes |" + " - |" * 5,
        "| B | 1.50 | 0.9990 to 123.46 | host | 12.3% | 50% | ? of 80 | close | 0.999 | 12,346 |"
        " 1.00 | 0.123 | 1 |",
    ]
    assert SideBySide((PLAIN,)).header()[-1] == "fits"


@pytest.mark.parametrize(
    ("ranks", "tokens", "price", "words"),
    [
        (1, 8.0, None, ""),
        (2, None, None, ""),
        (2, 8.0, None, "rates and costs are those of all 2 ranks"),
        (3, None, 1.0, "rates and costs are those of all 3 ranks"),
    ],
)
def test_whose_rates_and_costs_they_are_is_said_where_there_are_any_of_several_ranks(
    ranks: int, tokens: float | None, price: float | None, words: str
) -> None:
    row = replace(PLAIN, world_size=ranks, tokens_per_second=tokens, price_per_hour=price)

    assert SideBySide((row,)).words() == words
    assert SideBySide(()).words() == ""


def test_the_cheapest_fits_and_has_a_price() -> None:
    a, b, c = (
        replace(PLAIN, gpu=gpu, latency_us=us, cost_per_thousand_steps=cost)
        for gpu, us, cost in (("a", 1000.0, 3.0), ("b", 2000.0, 2.0), ("c", 3000.0, 0.0))
    )

    assert SideBySide((a, b, c)).cheapest is c
    assert SideBySide((a, b, replace(c, fits=False))).cheapest is b
    assert SideBySide((a, replace(b, cost_per_thousand_steps=None))).cheapest is None
    assert SideBySide((a, b)).words() == "fastest: a; cheapest a step: b"
    assert SideBySide((a,)).words() == ""
    assert SideBySide((replace(a, fits=False), replace(b, fits=False))).fastest is None


def one_step(batch: Batch, latency_us: float, world_size: int = 1, verdict: str = "fits") -> Any:
    return SimpleNamespace(
        step_latency_us=StepLatency(latency_us, latency_us / 2, latency_us * 2),
        memory_verdict=verdict,
        verdict=SimpleNamespace(
            whole_batch=batch, replicas=SimpleNamespace(world_size=world_size)
        ),
        phases=SimpleNamespace(ttft_us=7.0, tpot_us=(8.0, 9.0)),
        gpu=SimpleNamespace(name="T4", memory_bytes=16),
        bound="memory", mfu=0.12345678, coverage={"trained": 0.25}, fits=True,
        peak_reserved_bytes=5, context_bytes=3,
    )  # fmt: skip


def test_rates_and_costs_of_a_step_by_hand() -> None:
    """At 3.6 an hour of each of two GPUs, a millisecond costs 2e-6."""
    both = one_step(Batch(samples=4, tokens=100, source="loader"), 1000.0, world_size=2)
    nothing = one_step(Batch(), 0.0, verdict="unknown")

    [row] = lay_side_by_side([both], {"T4": 3.6}).rows

    costs = (
        row.cost_per_thousand_steps, row.cost_per_million_samples, row.cost_per_million_tokens
    )  # fmt: skip
    assert costs == pytest.approx((2e-3, 0.5, 0.02))
    assert replace(
        row, cost_per_thousand_steps=None, cost_per_million_samples=None,
        cost_per_million_tokens=None,
    ) == SideBySideRow(
        gpu="T4", latency_us=1000.0, low_us=500.0, high_us=2000.0, bound="memory", mfu=0.123457,
        trained=0.25, fits=True, used_bytes=8, capacity_bytes=16, samples_per_second=4000.0,
        tokens_per_second=100_000.0, price_per_hour=3.6, cost_per_thousand_steps=None,
        cost_per_million_samples=None, cost_per_million_tokens=None, memory_verdict="fits",
        world_size=2, batch_source="loader", ttft_us=7.0, tpot_us=9.0,
    )  # fmt: skip
    [row] = lay_side_by_side([nothing], {"T4": 3.6}).rows
    assert (row.used_bytes, row.samples_per_second, row.tokens_per_second) == (None, None, None)
    assert (row.cost_per_thousand_steps, row.cost_per_million_samples) == (0.0, None)
    [row] = lay_side_by_side([one_step(Batch(samples=0, tokens=1), 0.0)]).rows
    assert (row.samples_per_second, row.tokens_per_second) == (0.0, 0.0)


def test_a_price_may_be_nothing_but_not_of_another_gpu() -> None:
    assert parse_prices(["T4=0"], gpus=["T4"]) == {"T4": 0.0}
    with pytest.raises(OptionError) as raised:
        parse_prices(["T4=1"], gpus=["L40S", "A100-SXM4-80GB"])
    assert str(raised.value) == (
        "--price names T4, which is not among the GPUs asked for: L40S, A100-SXM4-80GB. "
        "Ask for T4 too, or leave its price out."
    )

"""How much worse a figure may be: what is said, and what is not."""

from __future__ import annotations

import pytest

from neusight.integrations.check.figures.tolerance import (
    DEFAULT_TOLERANCES,
    Tolerance,
    parse_tolerance,
    parse_tolerances,
)
from neusight.predictors.errors import OptionError


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("step_latency", "0.5 %", Tolerance(share=0.005)),
        ("step_latency", "2%", Tolerance(share=0.02)),
        ("step_latency", "0.1 ms", Tolerance(absolute=100)),
        ("peak_memory", "1 MiB", Tolerance(absolute=2**20)),
        ("peak_memory", 0, Tolerance()),
        ("num_kernels", 3, Tolerance(absolute=3)),
        ("num_kernels", "1e1", Tolerance(absolute=10)),
        ("throughput", "1 %", Tolerance(share=0.01)),
        ("throughput", "50 tokens/s", Tolerance(absolute=50)),
    ],
)
def test_a_tolerance_is_a_share_or_an_amount(name: str, text: object, expected: Tolerance) -> None:
    assert parse_tolerance(name, text) == expected


@pytest.mark.parametrize(
    ("name", "amounts"),
    [
        ("step_latency", {"1 us": 1, "1 µs": 1, "2ms": 2000, "1 s": 1e6}),
        ("peak_memory", {"1 B": 1, "2 bytes": 2, "1kB": 1e3, "1 MB": 1e6, "1 GB": 1e9}),
        ("peak_memory", {"1 KiB": 2**10, "1 MiB": 2**20, "1 GiB": 2**30}),
        ("flops", {"1 flop": 1, "1 FLOPs": 1, "1 GFLOP": 1e9, "2 gflops": 2e9}),
        ("flops", {"1 TFLOP": 1e12, "1 tflops": 1e12}),
        ("throughput", {"1 /s": 1, "1 samples/s": 1, "1 tokens/s": 1}),
        ("num_kernels", {"1": 1}),
    ],
)
def test_an_amount_is_in_any_unit_of_its_figure(name: str, amounts: dict[str, float]) -> None:
    found = {text: parse_tolerance(name, text) for text in amounts}

    assert found == {text: Tolerance(absolute=amount) for text, amount in amounts.items()}


@pytest.mark.parametrize(
    ("tolerance", "unit", "words"),
    [
        (Tolerance(), "us", "0 %"),
        (Tolerance(share=0.005), "us", "0.5 %"),
        (Tolerance(share=0.05, absolute=7), "us", "5 %"),
        (Tolerance(absolute=2**19), "bytes", "0.5 MiB"),
        (Tolerance(absolute=3), "", "3"),
        (Tolerance(absolute=3), "us", "3 us"),
    ],
)
def test_a_tolerance_is_shown_as_it_is_stated(tolerance: Tolerance, unit: str, words: str) -> None:
    assert tolerance.words(unit) == words


def test_only_negligible_changes_are_tolerated_by_default() -> None:
    allowed = {name: found.allowed(2**30) for name, found in DEFAULT_TOLERANCES.items()}

    half_a_percent = pytest.approx(0.005 * 2**30)
    assert allowed == {
        **dict.fromkeys(("step_latency", "gpu_busy", "num_kernels", "flops"), half_a_percent),
        **dict.fromkeys(("communication", "ttft", "tpot"), half_a_percent),
        **dict.fromkeys(("num_synchronizations", "num_graph_breaks", "num_recompiles"), 0.0),
        "peak_memory": 2**19,
        "peak_reserved": pytest.approx(0.05 * 2**30),
    }
    assert DEFAULT_TOLERANCES["peak_reserved"].allowed(0) == 20 * 2**20


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("step_latency", "much", "is 'much'; it must be a number"),
        ("step_latency", "5", "is '5'"),
        ("step_latency", "nan %", "is 'nan %'"),
        ("step_latency", "-1 %", "is '-1 %'"),
        ("step_latency", "1 MiB", "is '1 MiB'"),
        ("step_latency", None, "is None"),
        ("num_kernels", True, "is True"),
        ("throughput", "5 ms", "is .5 ms.; it must be a number such as .0.5 %. or .1 /s."),
        ("num_kernels", "3 %%", "is '3 %%'"),
        ("speed", "1 %", "There is no tolerance 'speed'; known: step_latency"),
    ],
)
def test_a_tolerance_that_is_no_number_is_refused(name: str, text: object, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_tolerance(name, text)


def test_what_is_not_said_has_its_default() -> None:
    found = parse_tolerances({"flops": "1 %"})

    assert found == {**DEFAULT_TOLERANCES, "flops": Tolerance(share=0.01)}

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

"""A result of a server is judged by a stored one, figure by figure."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.integrations.serving.baseline import BaselineChanges, judge

POINT: dict[str, Any] = {
    "gpu": "H100", "tp": 1, "pp": 1, "replicas": 1, "quantization": None, "load": "1 requests/s",
    "num_requests": 9, "mean_input_tokens": 5.0, "mean_output_tokens": 4.0,
    "ttft_s": {"p50": 1.0, "p99": 2.0}, "tpot_s": {"p50": 1.0, "p99": 2.0},
    "output_tokens_per_s": 100.0, "goodput": None, "most_kv_use": 0.0,
}  # fmt: skip
NAME = "H100, 1 requests/s"


def judged(now: dict[str, Any], before: dict[str, Any]) -> BaselineChanges:
    """By half of each figure."""
    documents = ({"points": [{**POINT, **changes}]} for changes in (now, before))
    return judge(*documents, tolerance=0.5)


@pytest.mark.parametrize(
    ("now", "before", "failures", "notes"),
    [
        ({}, {}, [], []),
        ({"output_tokens_per_s": 50.0, "ttft_s": {"p50": 1.5, "p99": 1.0}}, {}, [], []),
        ({"output_tokens_per_s": 49.0}, {}, ["tokens/s 100 -> 49 (-51.0%)"], []),
        ({"output_tokens_per_s": 151.0}, {}, [], ["tokens/s 100 -> 151 (+51.0%)"]),
        ({"ttft_s": {"p50": 1.6, "p99": 0.9}}, {}, ["TTFT p50 1 -> 1.6 (+60.0%)"],
         ["TTFT p99 2 -> 0.9 (-55.0%)"]),
        ({"tpot_s": {"p50": 0.4, "p99": 3.1}}, {}, ["TPOT p99 2 -> 3.1 (+55.0%)"],
         ["TPOT p50 1 -> 0.4 (-60.0%)"]),
        ({"most_kv_use": 0.1}, {}, ["KV cache use 0 -> 0.1 (+inf%)"], []),
        ({}, {"goodput": 12345.0}, ["goodput 1.234e+04 -> none"], []),
        ({"goodput": 5.0}, {}, [], []),
    ],
)  # fmt: skip
def test_a_figure_is_worse_beyond_the_tolerance(
    now: dict[str, Any], before: dict[str, Any], failures: list[str], notes: list[str]
) -> None:
    expected = [tuple(f"{NAME}: {text}" for text in texts) for texts in (failures, notes)]

    assert judged(now, before) == BaselineChanges(*expected)


@pytest.mark.parametrize("key", ["num_requests", "mean_input_tokens", "mean_output_tokens"])
def test_another_load_is_not_judged(key: str) -> None:
    found = judged({key: 7, "output_tokens_per_s": 1.0}, {})

    assert found.failures == (f"{NAME} is another load than in the baseline: --update replaces it",)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"gpu": "L4"}, "L4, 1 requests/s"),
        ({"tp": 2, "pp": 3, "replicas": 4}, "H100 tp 2 pp 3 4 replicas, 1 requests/s"),
        ({"quantization": "fp8"}, "H100 fp8, 1 requests/s"),
        ({"load": "4 users"}, "H100, 4 users"),
    ],
)
def test_what_was_not_served_before_is_named(changes: dict[str, Any], name: str) -> None:
    assert judged(changes, {}) == BaselineChanges(
        (f"{name} is not in the baseline: --update adds it",),
        (f"{NAME} of the baseline was not served",),
    )


def test_a_lower_highest_rate_is_worse() -> None:
    now, before = ({"points": [], "highest_rates": [{"gpu": "H100", "rate": rate}]}
                   for rate in (4.0, 9.0))  # fmt: skip

    assert judge(now, before, tolerance=0.02).failures == (
        "H100, the highest rate that keeps the SLO: requests/s 9 -> 4 (-55.6%)",
    )

"""Rates and deployments are found for servers whose steps all take as long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.forecast import forecast_options
from neusight.integrations.serving.model import ServedModel
from neusight.integrations.serving.search import cheapest, cost_per_hour, plan_lines
from neusight.integrations.serving.service import (
    Deployment,
    Server,
    ServerSettings,
    highest_rate,
    steady_point,
)
from neusight.predictors.gpu import find_gpu
from neusight.serving.figures import Slo
from neusight.serving.load import Lengths, Load, RequestClass
from neusight.serving.prices import Engine
from neusight.serving.scheduler import SchedulerOptions, StepCost

MODEL = ServedModel("model", (), 0, 0.0, None)
SLO = Slo(ttft_s=0.05, attainment=1.0)
#: Two steps a request, which arrive at equal distances.
LOAD = Load((RequestClass(Lengths("fixed", 10), Lengths("fixed", 2)),), 400, "uniform")


class SteadyServer(Server):
    """One request at a time, a token a step: in the time that is stated with 2,048 tokens a step,
    faster with more of them."""

    def __init__(
        self, step_ms: float, gpu: str = "H100", replicas: int = 1, tokens: int = 2048,
        price: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            MODEL,
            Deployment(find_gpu(gpu), replicas=replicas),
            ServerSettings(Engine(), max_num_seqs=1, max_num_batched_tokens=tokens),
            forecast_options(gpu),
            price=price,
        )
        self.step_ms = step_ms
        step_us = 1e3 * step_ms * 2048 / tokens
        vars(self).update(
            prices=lambda batch: StepCost(step_us, 1, step_us),
            max_model_len=4096,
            scheduler=SchedulerOptions(1000, max_num_seqs=1, max_num_batched_tokens=tokens),
        )

    def changed(self, *, replicas: int, step_tokens: int = 0) -> Server:
        gpu, tokens = self.deployment.gpu.name, step_tokens or self.step_tokens
        return SteadyServer(self.step_ms, gpu, replicas, tokens, self.price)


@pytest.mark.parametrize(
    ("step_ms", "ttft_s", "rate"),
    [
        (50.0, 0.09, 10.0), (1.0, 0.05, 528.0), (249.5, 0.25, 2.0), (750.0, 0.8, 0.664),
        (50.1, 0.05, None),
    ],
)  # fmt: skip
def test_the_highest_rate_is_what_the_steps_of_a_request_allow(
    step_ms: float, ttft_s: float, rate: float | None
) -> None:
    """The last of 400 waits for 399 times what a request takes longer than until the next."""
    slo = replace(SLO, ttft_s=ttft_s)

    found = highest_rate(SteadyServer(step_ms), LOAD, slo)

    assert (found and found.rate) == rate
    assert found is None or found.is_good(slo)


def test_a_rate_is_kept_for_as_long_as_four_requests_take() -> None:
    one = RequestClass(Lengths("fixed", 10), Lengths("fixed", 100))
    long = replace(LOAD, classes=(one,), num_requests=2)
    server = SteadyServer(1.0)

    kept, broken = (steady_point(server, long, rate, SLO) for rate in (9.0, 50.0))

    assert kept.figures.num_requests == 4  # 4 x 9 requests/s x 0.1 s
    assert broken.figures.num_requests == 2


def test_as_many_replicas_serve_a_rate_as_it_takes_cheapest_first() -> None:
    servers = [
        SteadyServer(10.0, "H100", price=3.0),
        SteadyServer(20.0, "L4", price=0.5),
        SteadyServer(80.0, "A10", tokens=8192, price=0.1),
        SteadyServer(60.0, "T4", price=0.1),
    ]

    points, problems = cheapest(servers, LOAD, SLO, 125.0)

    assert [
        (point.server.deployment.label, point.server.step_tokens, cost_per_hour(point.server))
        for point in points
    ] == [
        ("5 x A10", 8192, (0.5, 5)),
        ("2 x L4", 8192, (1.0, 2)),
        ("H100-SXM5-80GB", 8192, (3.0, 1)),
    ]
    assert all(point.is_good(SLO) and point.rate == 125.0 for point in points)
    assert problems == ["T4 is left out: no rate keeps the limits of --slo"]


def test_a_plan_says_what_to_run_or_that_nothing_will_do() -> None:
    points, _ = cheapest([SteadyServer(10.0)], LOAD, SLO, 250.0)

    assert plan_lines(points, 250.0) == [
        "Deployments that serve 250 requests/s within the limits, cheapest by the number of GPUs"
        " (--price ranks by dollars) first:",
        "",
        "  deployment      replicas  GPUs  tokens a step  TTFT p50     p99  TPOT p50     p99",
        "  H100-SXM5-80GB         2     2          8,192    2.5 ms  2.5 ms    2.5 ms  2.5 ms",
        "",
        "The first of them (2 times): vllm serve model --max-num-batched-tokens 8192"
        " --max-num-seqs 1",
    ]
    assert plan_lines([], 250.0) == [
        "No deployment serves 250 requests/s within the limits of --slo."
    ]

"""Figures of a run."""

from __future__ import annotations

import pytest

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import find_gpu
from neusight.serving.figures import Slo, parse_slo, percentiles, serving_figures
from neusight.serving.load import InferenceRequest, Lengths, Load, RequestClass
from neusight.serving.scheduler import (
    SchedulerOptions,
    ServedRequest,
    ServerRun,
    StepBatch,
    StepCost,
    StepRecord,
    simulate,
)

H100 = find_gpu("H100")


def price(batch: StepBatch) -> StepCost:
    return StepCost(10_000.0, 1 if batch.decodes else 0, 8_000.0)


def run(requests: list[InferenceRequest], *, num_blocks: int = 1000) -> ServerRun:
    return simulate(requests, SchedulerOptions(num_blocks=num_blocks, max_num_seqs=4), price)


def test_percentiles_count_how_often_values_occur() -> None:
    found = percentiles([(1.0, 50), (2.0, 40), (3.0, 9), (4.0, 1)])

    assert found[1:] == (1.0, 2.0, 3.0)
    assert found.mean == pytest.approx(1.61)


def test_figures_of_one_request_by_hand() -> None:
    found = serving_figures([run([InferenceRequest(0, 0.0, 100, 5)])], H100, num_gpus=2, price=3.6)

    assert found.duration_s == pytest.approx(0.05)
    assert found.ttft_s.p50 == pytest.approx(0.01)
    assert found.tpot_s.p50 == pytest.approx(0.01)
    assert found.e2e_s.p50 == pytest.approx(0.05)
    assert found.output_tokens_per_s == pytest.approx(100)
    assert found.input_tokens_per_s == pytest.approx(2000)
    assert found.tokens_per_s_gpu == pytest.approx(50)
    assert found.dollars_per_million_tokens == pytest.approx(2 * 3.6 / 3600 * 0.05 / 5e-6)
    assert found.bound == "memory"
    assert found.bounds["compute"] == pytest.approx(0.2)
    assert found.busy_share == pytest.approx(0.8)


def test_goodput_counts_the_requests_that_keep_every_limit() -> None:
    requests = [InferenceRequest(0, 0.0, 100, 5), InferenceRequest(1, 0.0, 100, 500)]

    found = serving_figures([run(requests)], H100, num_gpus=1, slo=Slo(e2e_s=1.0))

    assert found.slo_share == 0.5
    assert found.goodput == pytest.approx(1 / found.duration_s)
    assert not found.meets(Slo(e2e_s=1.0))
    assert found.meets(Slo(e2e_s=1.0, attainment=0.5))


def load(rate: float) -> list[InferenceRequest]:
    kind = RequestClass(Lengths("fixed", 100), Lengths("fixed", 50))
    return Load((kind,), 200, rate=rate).requests(most_tokens=1000)


def test_a_load_beyond_what_the_server_does_is_said_to_be() -> None:
    light = serving_figures([run(load(1.0))], H100, num_gpus=1)
    heavy = serving_figures([run(load(50.0))], H100, num_gpus=1)

    assert light.saturation == ""
    assert heavy.saturation.startswith("the load is beyond saturation")


@pytest.mark.parametrize(
    ("done", "waiting", "is_said"),
    [(8, 4, True), (9, 4, False), (8, 3, False), (0, 100, True), (11, 100, False)],
)
def test_four_that_wait_while_nine_in_ten_are_done_are_no_saturation(
    done: int, waiting: int, is_said: bool
) -> None:
    """Eleven requests, a second apart; `done` have ended when the last arrives, the others a second
    later. Of two servers the other has nothing to do."""
    served = tuple(
        ServedRequest(
            InferenceRequest(at, float(at), 100, 50), float(at), float(at),
            10.0 if at < done else 10.5, 10.0 if at < done else 11.0, 0,
        )
        for at in range(11)
    )  # fmt: skip
    early = StepRecord(0.0, 9.9, 1, 99, 1, 1, 1, 0, 0, 1.0)
    steps = (early, early._replace(start_s=9.9, latency_s=0.1, waiting=waiting))
    runs = [ServerRun(served, steps, (), 10), ServerRun((), (early,), (), 10)]

    found = serving_figures(runs, H100, num_gpus=2)

    assert found.offered_rate == 1.0
    assert found.saturation == (
        f"the load is beyond saturation: 1.00 requests/s arrive, {done / 10:.2f} are completed "
        f"meanwhile, and {waiting} wait when the last arrives; with more requests the times would "
        "be longer still"
        if is_said
        else ""
    )


def test_the_rate_that_is_offered_is_that_of_the_arrivals() -> None:
    requests = [InferenceRequest(at, 0.5 * at, 100, 50) for at in range(11)]

    assert serving_figures([run(requests)], H100, num_gpus=1).offered_rate == 2.0


def test_requests_at_once_are_no_saturation() -> None:
    requests = [InferenceRequest(at, 0.0, 100, 50) for at in range(50)]

    assert serving_figures([run(requests)], H100, num_gpus=1).saturation == ""


def test_limits_have_units() -> None:
    assert parse_slo("ttft=500ms,tpot=30ms,e2e=20s") == Slo(0.5, 0.03, 20.0)
    assert not parse_slo("")


@pytest.mark.parametrize("text", ["ttft", "ttft=5", "itl=5ms", "ttft=-1ms", "ttft=xms"])
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--slo"):
        parse_slo(text)

"""Figures of a server's run: latencies, throughput, goodput, what limits it, its cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.serving.load import mean_tokens
from neusight.serving.scheduler import BOUNDS, ServedRequest, ServerRun, StepRecord

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600.0


class Percentiles(NamedTuple):
    """Of many values the mean and the 50th, 90th and 99th percentile."""

    mean: float
    p50: float
    p90: float
    p99: float


def percentiles(values: Sequence[tuple[float, int]]) -> Percentiles:
    """Of values and how often each occurs: the smallest at which that share is reached.

    >>> percentiles([(1.0, 98), (5.0, 2)])
    Percentiles(mean=1.08, p50=1.0, p90=1.0, p99=5.0)
    """
    ordered = sorted(values)
    seen = list(accumulate(count for _, count in ordered))
    if not seen:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    mean = sum(value * count for value, count in ordered) / seen[-1]
    at = (bisect_left(seen, seen[-1] * share) for share in (0.5, 0.9, 0.99))
    return Percentiles(mean, *(ordered[place][0] for place in at))


@dataclass(frozen=True)
class Slo:
    """What a request must keep, in seconds (None: nothing is asked), and the share of requests that
    must."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.9

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.e2e_s))

    def is_met(self, served: ServedRequest) -> bool:
        """Whether a request kept it."""
        tpot_s = served.tpot_s
        return (
            (self.ttft_s is None or served.ttft_s <= self.ttft_s)
            and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)
            and (self.e2e_s is None or served.latency_s <= self.e2e_s)
        )


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SLO_NAMES = ("ttft", "tpot", "e2e")


def parse_slo(text: str, *, attainment: float = 0.9) -> Slo:
    """Limits as "ttft=500ms,tpot=30ms,e2e=20s"; OptionError for anything else.

    >>> parse_slo("ttft=500ms,tpot=30ms").tpot_s
    0.03
    """
    limits: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in _SLO_NAMES:
            raise OptionError(f"--slo got {part!r}; it takes ttft, tpot and e2e: --slo ttft=500ms")
        limits[name] = seconds_of(value, option="--slo")
    if not 0 < attainment <= 1:
        raise OptionError(f"--attainment is {attainment:g}; it is a share of requests, up to 1")
    return Slo(limits.get("ttft"), limits.get("tpot"), limits.get("e2e"), attainment)


def seconds_of(text: str, *, option: str) -> float:
    """A time with its unit in seconds; OptionError.

    >>> seconds_of("30ms", option="--slo")
    0.03
    """
    number = text.strip().rstrip("umns")
    unit = text.strip()[len(number) :]
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise OptionError(f"{option} got {text!r}; a time has a unit: 500ms, 2s, 800us") from None
    if not 0 < value < float("inf"):
        raise OptionError(f"{option} got {text!r}; a time is above zero")
    return value


@dataclass(frozen=True)
class ServingFigures:
    """The figures of a run on `num_gpus`. Times in seconds, rates a second, shares 0 to 1.

    `saturation` says in words that the load is beyond what the server can do; empty where it is
    not. `bound` is what most of the time went to. `joules_per_million_tokens` takes the boards at
    their power limit while they are busy.
    """

    num_requests: int
    mean_input_tokens: float
    mean_output_tokens: float
    duration_s: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    request_rate: float
    offered_rate: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    tokens_per_s_user: float
    tokens_per_s_gpu: float
    slo_share: float | None
    goodput: float | None
    running: float
    most_running: int
    waiting: float
    most_waiting: int
    kv_use: float
    most_kv_use: float
    preemptions: int
    num_steps: int
    bound: str
    bounds: Mapping[str, float]
    busy_share: float
    dollars_per_million_tokens: float | None
    joules_per_million_tokens: float
    saturation: str

    def meets(self, slo: Slo) -> bool:
        """Whether as many requests keep the limits as must."""
        return self.slo_share is None or self.slo_share >= slo.attainment

    def to_json(self) -> dict[str, Any]:
        """Plain values; percentiles as objects."""
        document = asdict(self)
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            document[name] = getattr(self, name)._asdict()
        return document


#: Power of a board that waits, as a share of its limit. A prior: H100 SXM idles at 70 to 120 W.
_IDLE_POWER = 0.15
#: A load is beyond saturation where the server completes less than this share of what arrives
#: while requests arrive.
_KEEPS_UP = 0.9
#: And that many requests or more wait when the last arrives.
_LEAST_WAITING = 4


def serving_figures(
    runs: Sequence[ServerRun],
    gpu: GPU,
    *,
    num_gpus: int,
    slo: Slo | None = None,
    price: float | None = None,
) -> ServingFigures:
    """The figures of the replicas of a server together; `price` is that of one GPU an hour."""
    served = [one for run in runs for one in run.served]
    steps = [step for run in runs for step in run.steps]
    duration_s = max(run.end_s for run in runs) or 1e-9
    tokens_out = sum(step.new_tokens for step in steps)
    tokens_in = sum(one.request.input_tokens for one in served)
    busy = sum(step.latency_s for step in steps) or 1e-9
    by_bound = [0.0] * len(BOUNDS)
    for step in steps:
        by_bound[step.bound] += step.latency_s / busy
    met = None if not slo else sum(slo.is_met(one) for one in served)
    tpots = [(one.tpot_s, 1) for one in served if one.tpot_s is not None]
    tpot = percentiles(tpots)
    millions = tokens_out / _MILLION or 1e-12
    gpu_s = sum(step.gpu_s for step in steps) / len(runs)
    busy_share = min(1.0, gpu_s / duration_s)
    watts = gpu.tdp_w * num_gpus * (busy_share + _IDLE_POWER * (1 - busy_share))
    offered, saturation = _saturation(runs)
    mean_input, mean_output = mean_tokens([one.request for one in served])
    return ServingFigures(
        num_requests=len(served),
        mean_input_tokens=mean_input,
        mean_output_tokens=mean_output,
        duration_s=duration_s,
        ttft_s=percentiles([(one.ttft_s, 1) for one in served]),
        tpot_s=tpot,
        itl_s=percentiles([gap for run in runs for gap in run.gaps_s]),
        e2e_s=percentiles([(one.latency_s, 1) for one in served]),
        request_rate=len(served) / duration_s,
        offered_rate=offered,
        input_tokens_per_s=tokens_in / duration_s,
        output_tokens_per_s=tokens_out / duration_s,
        tokens_per_s_user=1.0 / tpot.p50 if tpot.p50 else 0.0,
        tokens_per_s_gpu=tokens_out / duration_s / num_gpus,
        slo_share=None if met is None else met / max(1, len(served)),
        goodput=None if met is None else met / duration_s,
        running=_mean(steps, "running"),
        most_running=max((step.running for step in steps), default=0),
        waiting=_mean(steps, "waiting"),
        most_waiting=max((step.waiting for step in steps), default=0),
        kv_use=_mean(steps, "used_blocks") / runs[0].num_blocks,
        most_kv_use=max((step.used_blocks for step in steps), default=0) / runs[0].num_blocks,
        preemptions=sum(one.preemptions for one in served),
        num_steps=len(steps),
        bound=BOUNDS[by_bound.index(max(by_bound))],
        bounds=dict(zip(BOUNDS, by_bound, strict=True)),
        busy_share=busy_share,
        dollars_per_million_tokens=None
        if price is None
        else price * num_gpus * duration_s / _SECONDS_PER_HOUR / millions,
        joules_per_million_tokens=watts * duration_s / millions,
        saturation=saturation,
    )


def _mean(steps: Sequence[StepRecord], name: str) -> float:
    """That of steps, over the time in which the server works."""
    busy = sum(step.latency_s for step in steps) or 1e-9
    return float(sum(getattr(step, name) * step.latency_s for step in steps) / busy)


def _saturation(runs: Sequence[ServerRun]) -> tuple[float, str]:
    """Requests that arrive a second, and a sentence where the server does not keep up."""
    served = [one for run in runs for one in run.served]
    arrivals = sorted(one.arrival_s for one in served)
    last = arrivals[-1] if arrivals else 0.0
    if last <= 0:
        return 0.0, ""
    offered = (len(arrivals) - 1) / last
    done = sum(one.last_token_s <= last for one in served) / last
    waiting = sum(
        next((step.waiting for step in run.steps if step.start_s + step.latency_s >= last), 0)
        for run in runs
    )
    if waiting < _LEAST_WAITING or done >= _KEEPS_UP * offered:
        return offered, ""
    rest = [one for one in served if one.first_token_s > last]
    if not rest:
        return offered, ""
    return offered, (
        f"the load is beyond saturation: {offered:,.2f} requests/s arrive, {done:,.2f} are "
        f"completed meanwhile, and {waiting:,} wait when the last arrives; with more requests "
        "the times would be longer still"
    )

"""The cheapest deployment that serves a rate and keeps the limits of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neusight.integrations.serving.service import LoadPoint, Server, steady_point
from neusight.predictors.errors import OptionError
from neusight.predictors.formatting import aligned
from neusight.serving.figures import Slo
from neusight.serving.load import Load

#: Deployments that are looked at again with other token budgets, and those that are shown.
_REFINED, _SHOWN = 3, 8
#: Tokens of a step: fewer keep the time of a token short, more get prompts through.
_BUDGETS = (512, 2048, 8192)
#: Replicas more than the rate of one asks for, at most, where requests come unevenly.
_MORE_REPLICAS = 3
#: And in all.
_MOST_REPLICAS = 1024


def cheapest(
    servers: Sequence[Server], load: Load, slo: Slo, rate: float
) -> tuple[list[LoadPoint], list[str]]:
    """For each server, as many replicas as serve the rate within the limits, cheapest first (by
    the number of GPUs where prices are missing); and why others are left out."""
    enough: list[Server] = []
    problems: list[str] = []
    for server in servers:
        try:
            enough.append(_replicated(server, load, slo, rate))
        except OptionError as error:
            problems.append(f"{server.deployment.label} is left out: {error}")
    enough.sort(key=cost_per_hour)
    for server in enough[:_REFINED]:
        for budget in _BUDGETS:
            if server.settings.max_num_seqs <= budget != server.step_tokens:
                other = server.changed(replicas=1, step_tokens=budget)
                try:
                    enough.append(_replicated(other, load, slo, rate))
                except OptionError:
                    continue  # no cheaper than with the budget that was stated
    enough.sort(key=cost_per_hour)
    points: list[LoadPoint] = []
    for server in enough[: _SHOWN + _REFINED]:
        point = _checked(server, load, slo, rate)
        if point is not None:
            points.append(point)
    points.sort(key=lambda point: (cost_per_hour(point.server), point.figures.tpot_s.p50))
    best: dict[str, LoadPoint] = {}  # with the best number of tokens of a step
    for point in points:
        best.setdefault(_label(point), point)
    return list(best.values()), problems


def _label(point: LoadPoint) -> str:
    """The deployment without the number of its copies."""
    return replace(point.server.deployment, replicas=1).label


def cost_per_hour(server: Server) -> tuple[float, int]:
    """What it is ranked by: dollars an hour (0 where no price is stated), and GPUs."""
    gpus = server.deployment.num_gpus
    return (server.price or 0.0) * gpus, gpus


def _replicated(server: Server, load: Load, slo: Slo, rate: float) -> Server:
    """As many copies as the rate asks for; OptionError where no rate keeps the limits."""

    def is_enough(count: int) -> bool:
        return steady_point(server, load, rate / count, slo).is_good(slo)

    enough = 1
    while not is_enough(enough):
        enough *= 2
        if enough > _MOST_REPLICAS:
            raise OptionError("no rate keeps the limits of --slo")
    few = enough // 2
    while enough - few > 1:
        middle = (few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            few = middle
    return server.changed(replicas=enough)


def _checked(server: Server, load: Load, slo: Slo, rate: float) -> LoadPoint | None:
    """The rate served by all replicas, by some more where those are not enough."""
    for _ in range(_MORE_REPLICAS):
        count = server.deployment.replicas
        whole = replace(load, num_requests=load.num_requests * count)
        point = steady_point(server, whole, rate, slo)
        if point.is_good(slo):
            return point
        server = server.changed(replicas=count + 1)
    return None


def plan_lines(points: Sequence[LoadPoint], rate: float) -> list[str]:
    """What to run, and what it costs beside others."""
    if not points:
        return [f"No deployment serves {rate:g} requests/s within the limits of --slo."]
    has_prices = any(point.server.price for point in points)
    rows = [("deployment", "replicas", "GPUs", "tokens a step", *(["$/h", "$/M tokens"]
             if has_prices else []), "TTFT p50", "p99", "TPOT p50", "p99")]  # fmt: skip
    for point in points:
        deployment, found = point.server.deployment, point.figures
        dollars = found.dollars_per_million_tokens
        costs = [f"{cost_per_hour(point.server)[0]:,.2f}",
                 "-" if dollars is None else f"{dollars:,.2f}"] if has_prices else []  # fmt: skip
        rows.append(
            (_label(point), f"{deployment.replicas:,}",
             f"{deployment.num_gpus:,}", f"{point.server.step_tokens:,}", *costs,
             *(f"{1e3 * value:,.1f} ms" for value in (found.ttft_s.p50, found.ttft_s.p99,
                                                    found.tpot_s.p50, found.tpot_s.p99)))
        )  # fmt: skip
    by = "an hour" if has_prices else "by the number of GPUs (--price ranks by dollars)"
    return [
        f"Deployments that serve {rate:g} requests/s within the limits, cheapest {by} first:",
        "",
        *(f"  {line}" for line in aligned(rows)),
        *_command_lines(points[0]),
    ]


#: What vLLM converts while it loads; other weights of fewer bits come as a checkpoint.
_CONVERTED = ("fp8",)


def _command_lines(point: LoadPoint) -> list[str]:
    """How vLLM is started so."""
    deployment, settings = point.server.deployment, point.server.settings
    if settings.engine.name != "vllm":
        return []
    bits = deployment.quantization
    stated = {
        "--max-num-batched-tokens": point.server.step_tokens,
        "--max-num-seqs": settings.max_num_seqs,
        "--max-model-len": settings.max_model_len,
        "--tensor-parallel-size": deployment.ranks if deployment.ranks > 1 else None,
        "--pipeline-parallel-size": deployment.stages if deployment.stages > 1 else None,
        "--quantization": bits if bits in _CONVERTED else None,
        "--kv-cache-dtype": "fp8" if settings.kv_dtype else None,
        "--scheduling-policy": settings.policy if settings.policy != "fcfs" else None,
    }
    options = [f"{name} {value}" for name, value in stated.items() if value is not None]
    options += ["--enable-expert-parallel"] if settings.expert_parallel else []
    times = f" ({deployment.replicas} times)" if deployment.replicas > 1 else ""
    command = f"vllm serve {point.server.model.name} {' '.join(options)}"
    weights = f", of a checkpoint in {bits}" if bits and bits not in _CONVERTED else ""
    return ["", f"The first of them{times}: {command}{weights}"]

"""The one screen of `neusight serve`: what is served, how fast, what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neusight.integrations.serving.request import ServeRequest
from neusight.integrations.serving.service import TYPICAL_SEQUENCES, LoadPoint, Server
from neusight.predictors.formatting import aligned, bytes_text
from neusight.serving.figures import Percentiles, Slo
from neusight.serving.load import Load
from neusight.serving.scheduler import BOUNDS

_BOUND_WORDS = {
    "compute": "arithmetic (compute)",
    "memory": "reading weights (memory)",
    "kv": "attention over the KV cache",
    "network": "communication between GPUs",
    "host": "the host (scheduler, launches)",
}


def bound_text(name: str) -> str:
    """A bound, explained for readers who do not know the term."""
    return _BOUND_WORDS[name]


def server_lines(server: Server) -> list[str]:
    """What runs, and how much space it has."""
    capacity, program = server.capacity, server.program
    settings, deployment = server.settings, server.deployment
    name = server.model.name
    bits = f", {deployment.quantization} weights" if deployment.quantization else ""
    a_gpu = " a GPU" if deployment.ranks * deployment.stages > 1 else ""
    lines = [
        f"{name} on {deployment.label}, {settings.engine.name} engine{bits}",
        f"  memory    {bytes_text(capacity.usable_bytes)} of "
        f"{bytes_text(deployment.gpu.memory_bytes)} usable{a_gpu}: "
        f"{bytes_text(capacity.weight_bytes)} weights, {bytes_text(capacity.kv_bytes)} KV cache",
        *_cache_lines(server, a_gpu),
    ]
    if program.unmatched:
        names = ", ".join(program.unmatched)
        lines.append(
            f"  note      no fused kernel is known for: {names}; run as recorded, "
            f"{server.unmatched_share:.1%} of a step of {TYPICAL_SEQUENCES} tokens"
        )
    return lines


def _cache_lines(server: Server, a_gpu: str) -> Iterator[str]:
    capacity, program = server.capacity, server.program
    if program.kv_bytes_per_token:
        yield (
            f"  KV cache  {capacity.num_tokens:,} tokens in {capacity.num_blocks:,} blocks of "
            f"{capacity.block_size}; {program.kv_bytes_per_token / 1024:,.1f} KiB a token{a_gpu}"
            f"{_window_text(server)}"
        )
    if program.state_bytes:
        dtypes = ", ".join(dict.fromkeys(layer.state_dtype for layer, _ in program.recurrences))
        held = (
            f"in {capacity.state_blocks:,} of these blocks"
            if capacity.state_blocks
            else f"{capacity.num_blocks:,} sequences of any length"
        )
        yield (
            f"  state     {bytes_text(program.state_bytes)} a sequence{a_gpu} ({dtypes}), {held}; "
            "scans are priced as mamba_ssm's kernels, whatever computes them in the model's code"
        )


def _window_text(server: Server) -> str:
    program = server.program
    if not program.window:
        return ""
    return f", {program.window_share:.0%} of it for the last {program.window:,} tokens only"


def point_lines(point: LoadPoint, slo: Slo) -> list[str]:
    """One load in full."""
    found = point.figures
    rows = [
        ("", "mean", "p50", "p90", "p99", ""),
        _row("first token (TTFT)", found.ttft_s, "from sending to the first token"),
        _row("each further token (TPOT)", found.tpot_s, "mean of a request"),
        _row("between tokens (ITL)", found.itl_s, "every single gap"),
        _row("whole answer (E2E)", found.e2e_s, "from sending to the last token"),
    ]
    lines = [f"  {line}" for line in aligned(rows, left=(0, 5))]
    lines += [
        "",
        f"  tokens/s  {found.output_tokens_per_s:,.0f} out, {found.input_tokens_per_s:,.0f} in; "
        f"{found.tokens_per_s_user:,.1f} for each user, {found.tokens_per_s_gpu:,.0f} for each GPU",
        f"  requests  {found.num_requests:,} in {found.duration_s:,.1f} s "
        f"({found.request_rate:,.2f}/s); running {found.running:,.1f} (most "
        f"{found.most_running:,}), waiting {found.waiting:,.1f} (most {found.most_waiting:,})",
        f"  KV cache  {found.kv_use:.0%} used (most {found.most_kv_use:.0%}); "
        f"{found.preemptions:,} preemptions",
        f"  limited   by {_BOUND_WORDS[found.bound]}: {_bounds_text(found.bounds)} of the time",
    ]
    if found.slo_share is not None and found.goodput is not None:
        met = "met" if found.meets(slo) else "NOT met"
        lines.append(
            f"  SLO       {met}: {found.slo_share:.1%} of requests keep {slo_text(slo)}; goodput "
            f"{found.goodput:,.2f} requests/s"
        )
    lines.append(f"  cost      {_cost_text(point)}")
    if found.saturation:
        lines.append(f"  WARNING   {found.saturation}")
    return lines


def _row(name: str, values: Percentiles, words: str) -> tuple[str, ...]:
    return (name, *(seconds_text(value) for value in values), words)


def seconds_text(seconds: float) -> str:
    """A time in s or ms.

    >>> seconds_text(0.0325), seconds_text(65.5)
    ('32.5 ms', '65.50 s')
    """
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"


def _bounds_text(bounds: object) -> str:
    assert isinstance(bounds, dict)
    parts = [(bounds[name], name) for name in BOUNDS if bounds[name] >= 0.005]
    return ", ".join(f"{share:.0%} {name}" for share, name in sorted(parts, reverse=True))


def slo_text(slo: Slo) -> str:
    """The limits in words."""
    named = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
    return ", ".join(f"{name} {seconds_text(limit)}" for name, limit in named if limit is not None)


def _cost_text(point: LoadPoint) -> str:
    found = point.figures
    kilojoules = found.joules_per_million_tokens / 1e3
    energy = f"{kilojoules:,.0f} kJ a million tokens out (boards at their power limit while busy)"
    if found.dollars_per_million_tokens is None:
        return f"{energy}; --price adds dollars"
    return f"${found.dollars_per_million_tokens:,.2f} and {energy}"


def table_lines(points: Sequence[LoadPoint]) -> list[str]:
    """A line for each deployment and load; the frontier is marked."""
    best = frontier_of(points)
    many = len({point.server.deployment.label for point in points}) > 1
    head = ["deployment"] if many else []
    rows: list[tuple[str, ...]] = [
        (*head, "load", "TTFT p50", "p99", "TPOT p50", "p99", "tokens/s", "a user", "a GPU",
         "KV", "waiting", "SLO", "$/M", "limited by"),
    ]  # fmt: skip
    for point in points:
        found = point.figures
        dollars = found.dollars_per_million_tokens
        mark = " *" if many and point in best else ""
        own = [point.server.deployment.label + mark] if many else []
        rows.append(
            (*own, point.label, seconds_text(found.ttft_s.p50), seconds_text(found.ttft_s.p99),
             seconds_text(found.tpot_s.p50), seconds_text(found.tpot_s.p99),
             f"{found.output_tokens_per_s:,.0f}", f"{found.tokens_per_s_user:,.1f}",
             f"{found.tokens_per_s_gpu:,.0f}", f"{found.kv_use:.0%}", f"{found.waiting:,.0f}",
             "-" if found.slo_share is None else f"{found.slo_share:.0%}",
             "-" if dollars is None else f"{dollars:.2f}",
             "saturated" if found.saturation else found.bound)
        )  # fmt: skip
    lines = [f"  {line}" for line in aligned(rows, left=(0, 1) if many else (0,))]
    if many:
        lines.append("  * none is better in both tokens/s a user and tokens/s a GPU")
    return lines


def frontier_of(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Those that no other beats in tokens/s a user and tokens/s a GPU together."""

    def beats(one: LoadPoint, other: LoadPoint) -> bool:
        a, b = one.figures, other.figures
        return (
            a.tokens_per_s_user >= b.tokens_per_s_user
            and a.tokens_per_s_gpu >= b.tokens_per_s_gpu
            and (a.tokens_per_s_user, a.tokens_per_s_gpu)
            != (b.tokens_per_s_user, b.tokens_per_s_gpu)
        )

    return [one for one in points if not any(beats(other, one) for other in points)]


def explanation_lines(*, of_table: bool) -> list[str]:
    """What the figures are, for readers who are new to them."""
    table = [
        "p50, p99: half and 99% of requests are no slower. tokens/s: generated tokens; a user: of",
        "one request; a GPU: of each. KV: share of the cache in use, waiting: requests in the",
        "queue, both on average. $/M: dollars a million generated tokens. limited by: what most of",
        "the time goes to (memory: reading weights; kv: attention over the cache).",
    ]
    return [
        "TTFT: time to the first token. TPOT: time of each further one. SLO: share of requests",
        "that keep the limits of --slo.",
        *(table if of_table else []),
        "Forecast from the recorded kernels and vLLM's scheduling rules; nothing ran on a GPU.",
    ]


def screen_lines(
    points: Sequence[LoadPoint],
    highest: Sequence[tuple[Server, LoadPoint | None]],
    request: ServeRequest,
    *,
    is_quiet: bool,
) -> list[str]:
    """All that is shown."""
    slo = request.slo
    if is_quiet:
        return table_lines(points)
    lines = _servers_lines(list(dict.fromkeys(point.server for point in points)))
    if request.load is not None:
        lines += [_load_text(request.load), ""]
    if len(points) == 1:
        lines += point_lines(points[0], slo)
    else:
        lines += [*table_lines(points), *_saturations(points)]
    if highest:
        lines += ["", *(_highest_line(server, point, slo) for server, point in highest)]
    return [*lines, "", *explanation_lines(of_table=len(points) > 1)]


#: Servers that are described in full; of more the memory is shown in a table.
_MOST_DESCRIBED = 2


def _servers_lines(servers: Sequence[Server]) -> list[str]:
    if len(servers) <= _MOST_DESCRIBED:
        return [line for server in servers for line in (*server_lines(server), "")]
    rows = [("deployment", "weights a GPU", "KV cache a GPU", "tokens in it")]
    for server in servers:
        capacity = server.capacity
        rows.append(
            (
                server.deployment.label,
                bytes_text(capacity.weight_bytes),
                bytes_text(capacity.kv_bytes),
                f"{capacity.num_tokens:,}",
            )
        )
    first = servers[0]
    return [
        f"{first.model.name}, {first.settings.engine.name} engine",
        *(f"  {line}" for line in aligned(rows)),
        "",
    ]


_ARRIVALS = {
    "poisson": "Poisson arrivals",
    "gamma": "gamma-distributed gaps between arrivals",
    "uniform": "arrivals at equal distances",
}


def _load_text(load: Load) -> str:
    kinds = "; ".join(f"{one.input} tokens in, {one.output} out" for one in load.classes)
    arrivals = f"{load.users:,} users" if load.arrivals == "closed" else _ARRIVALS[load.arrivals]
    turns = f", sessions of {load.turns} turns" if load.turns > 1 else ""
    return f"{load.num_requests:,} requests, {arrivals}{turns}: {kinds}"


def _saturations(points: Sequence[LoadPoint]) -> list[str]:
    """The plain warning, of several loads for the lowest of each deployment."""
    found: dict[str, LoadPoint] = {}
    for point in points:
        if point.figures.saturation:
            found.setdefault(point.server.deployment.label, point)
    return [
        f"  WARNING   {label}, {point.label}: {point.figures.saturation}"
        for label, point in found.items()
    ]


def _highest_line(server: Server, point: LoadPoint | None, slo: Slo) -> str:
    label, share = server.deployment.label, f"{slo.attainment:.0%} of requests"
    if point is None or point.rate is None:
        return f"{label}: no rate keeps {slo_text(slo)} for {share}"
    found = point.figures
    # what it keeps up with, without the end of the run, at which ever fewer requests are left
    sustained = point.rate * found.mean_output_tokens
    dollars = found.dollars_per_million_tokens
    if dollars is not None:
        dollars *= found.output_tokens_per_s / sustained
    cost = "" if dollars is None else f", ${dollars:,.2f} a million tokens"
    return (
        f"{label}: up to {point.rate:,g} requests/s keep {slo_text(slo)} for {share}: "
        f"{sustained:,.0f} tokens/s{cost}"
    )

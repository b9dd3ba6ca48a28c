"""`neusight serve`: forecasts a model server under a load of requests."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import tell_problems, tried, write_json
from neusight.integrations.cli.screen import coloured
from neusight.integrations.report.side_by_side import parse_prices
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.timeline.host import HOST_HELP

if TYPE_CHECKING:
    from neusight.integrations.serving.model import ServedModel
    from neusight.integrations.serving.requirements import Requirement
    from neusight.integrations.serving.service import LoadPoint, Server
    from neusight.serving.figures import Slo
    from neusight.serving.load import Load, Request

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "forecast a model server under a load of requests"
DESCRIPTION = (
    "Forecast what a server of a causal model does under a load: time to the first token, time of "
    "each further one, throughput, cost, and the highest rate that keeps a limit. MODEL is the "
    "config.json or folder of a transformers model (no weights are read), FILE.py:FUNCTION that "
    "builds any causal model, or a recording of a generation (neusight run --save). Exit codes: 0 "
    "ok, 1 a --require is not met, 2 wrong use."
)

SCHEMA_VERSION = 1
_KV_DTYPES = {"auto": "", "fp8": "float8_e4m3fn"}


def add_arguments(serve: argparse.ArgumentParser) -> None:
    """The options of `neusight serve`."""
    serve.add_argument("model", metavar="MODEL", help="config.json, its folder, FILE.py:FUNCTION, "
                       "or a recording of a generation")  # fmt: skip
    serve.add_argument("--gpu", action="append", required=True, metavar="NAME[,NAME…]",
                       help="GPU that serves, also several (`neusight gpus` lists all)")  # fmt: skip
    _add_deployment(serve)
    _add_load(serve)
    _add_scheduler(serve)
    _add_results(serve)


def _add_deployment(serve: argparse.ArgumentParser) -> None:
    from neusight.serving.quantization import QUANTIZATIONS

    serve.add_argument("--tp", default="1", metavar="N[,N…]",
                       help="GPUs that share each layer (tensor parallel), also several to "
                       "compare (1)")  # fmt: skip
    serve.add_argument("--replicas", type=int, default=1, metavar="N",
                       help="copies of the server that share the requests (1)")  # fmt: skip
    serve.add_argument("--quantization", default="none", metavar="NAME[,NAME…]",
                       help=f"of the layers' weights: none, {', '.join(QUANTIZATIONS)}; also "
                       "several to compare (none)")  # fmt: skip
    serve.add_argument("--kv-cache-dtype", choices=tuple(_KV_DTYPES), default="auto",
                       help="of keys and values in the cache (the model's)")  # fmt: skip
    serve.add_argument("--dtype", choices=("float16", "bfloat16"), default="",
                       help="of weights and activations (the config's)")  # fmt: skip
    serve.add_argument("--engine", choices=("vllm", "compiled", "eager"), default="vllm",
                       help="what runs the model: vLLM's fused kernels in CUDA graphs, "
                       "torch.compile, or eager PyTorch (vllm)")  # fmt: skip
    serve.add_argument("--topology", metavar="NAME|FILE.json",
                       help="how the GPUs are joined (as in the GPU's reference system)")  # fmt: skip
    serve.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    serve.add_argument("--calibration", metavar="FILE", help="what `neusight calibrate` learnt")
    serve.add_argument("--host", metavar="NAME[,ghz=…]", help=HOST_HELP)


def _add_load(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--input", action="append", default=[], metavar="TOKENS",
                       help="tokens of a prompt: 1024, uniform:100-2000 or lognormal:500,0.8 "
                       "(1024); given several times: classes of requests")  # fmt: skip
    serve.add_argument("--output", action="append", default=[], metavar="TOKENS",
                       help="tokens of an answer, likewise (256)")  # fmt: skip
    serve.add_argument("--share", action="append", default=[], type=float, metavar="S",
                       help="share of each class among all (equal)")  # fmt: skip
    serve.add_argument("--priority", action="append", default=[], type=int, metavar="P",
                       help="priority of each class, lower first, for --policy priority")  # fmt: skip
    serve.add_argument("--rate", default="", metavar="R[,R…]",
                       help="requests that arrive a second, also several (1)")  # fmt: skip
    serve.add_argument("--requests", type=int, default=500, metavar="N", help="how many (500)")
    serve.add_argument("--arrivals", choices=("poisson", "gamma", "uniform"), default="poisson",
                       help="how they arrive (poisson)")  # fmt: skip
    serve.add_argument("--burstiness", type=float, default=1.0, metavar="C",
                       help="coefficient of variation between gamma arrivals (1)")  # fmt: skip
    serve.add_argument("--users", type=int, default=0, metavar="N",
                       help="instead of a rate: N users who each send the next request after "
                       "their answer")  # fmt: skip
    serve.add_argument("--think", type=float, default=0.0, metavar="S",
                       help="seconds between an answer and the next request of a user (0)")  # fmt: skip
    serve.add_argument("--turns", type=int, default=1, metavar="N",
                       help="requests of a session, each after the text of those before (1)")  # fmt: skip
    serve.add_argument("--prefix-hit-rate", type=float, default=0.0, metavar="S",
                       help="share of the earlier turns' text that the prefix cache holds (0)")  # fmt: skip
    serve.add_argument("--load", metavar="FILE.csv",
                       help="instead of all that: arrival_s, input_tokens, output_tokens of each "
                       "request")  # fmt: skip
    serve.add_argument("--seed", type=int, default=0, metavar="N", help="of all chance (0)")


def _add_scheduler(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--max-num-seqs", type=int, default=256, metavar="N",
                       help="sequences that run at once (256)")  # fmt: skip
    serve.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N",
                       help="tokens of a step (2048)")  # fmt: skip
    serve.add_argument("--max-model-len", type=int, metavar="N",
                       help="tokens of a request with its answer (the model's positions)")  # fmt: skip
    serve.add_argument("--gpu-memory-utilization", type=float, default=0.9, metavar="S",
                       help="share of the memory that the server uses (0.9)")  # fmt: skip
    serve.add_argument("--block-size", type=int, default=16, metavar="N",
                       help="tokens of a block of the KV cache (16)")  # fmt: skip
    serve.add_argument("--num-gpu-blocks-override", type=int, metavar="N",
                       help="blocks of the KV cache (as many as fit)")  # fmt: skip
    serve.add_argument("--no-chunked-prefill", action="store_true", help="do not cut prompts")
    serve.add_argument("--no-prefix-caching", action="store_true", help="keep no prefixes")
    serve.add_argument("--no-async-scheduling", action="store_true",
                       help="schedule a step only when the one before has ended")  # fmt: skip
    serve.add_argument("--policy", choices=("fcfs", "priority"), default="fcfs",
                       help="whose turn it is (fcfs)")  # fmt: skip
    serve.add_argument("--batching", choices=("continuous", "static"), default="continuous",
                       help="static: a batch ends with its longest answer (continuous)")  # fmt: skip
    serve.add_argument("--speculative-tokens", type=int, default=0, metavar="N",
                       help="tokens proposed for each sequence and step (0)")  # fmt: skip
    serve.add_argument("--acceptance", type=float, default=0.7, metavar="S",
                       help="chance that a proposed token is accepted if those before it are "
                       "(0.7)")  # fmt: skip
    serve.add_argument("--draft", metavar="MODEL",
                       help="the model that proposes them (none: found in the text)")  # fmt: skip


def _add_results(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--slo", default="", metavar="LIMITS",
                       help="limits of a request: ttft=500ms,tpot=30ms,e2e=20s; finds the highest "
                       "rate that keeps them")  # fmt: skip
    serve.add_argument("--attainment", type=float, default=0.9, metavar="S",
                       help="share of requests that must keep them (0.9)")  # fmt: skip
    serve.add_argument("--price", action="append", default=[], metavar="GPU=PRICE,…",
                       help="dollars of a GPU an hour")  # fmt: skip
    serve.add_argument("--require", default="", metavar="LIMITS",
                       help="exit with 1 unless the figures keep these: "
                       "tpot_p50<=30ms,ttft_p99<=2s,output_tokens_per_s>=1000")  # fmt: skip
    serve.add_argument("--json", metavar="FILE", help="write all figures there")
    serve.add_argument("--html", metavar="FILE", help="write a page with curves there")
    serve.add_argument("--trace", metavar="FILE",
                       help="write the server's timeline there, for ui.perfetto.dev")  # fmt: skip
    serve.add_argument("--quiet", action="store_true", help="print a line for each load only")


@dataclass(frozen=True)
class _Asked:
    """What a command line asks for."""

    gpus: tuple[GPU, ...]
    ranks: tuple[int, ...]
    quantizations: tuple[str, ...]
    rates: tuple[float, ...]
    slo: Slo
    load: Load | None
    requests: tuple[Request, ...]
    requirements: tuple[Requirement, ...]
    prices: dict[str, float]


def run(options: argparse.Namespace) -> int:
    """Serves the load on each deployment; the exit code."""
    asked = _asked(options)
    points: list[LoadPoint] = []
    highest: list[tuple[Server, LoadPoint | None]] = []
    problems: list[str] = []
    for server in _servers(options, asked):
        try:
            points += _points(server, asked)
            if asked.slo and asked.load is not None and asked.load.arrivals != "closed":
                from neusight.integrations.serving.service import highest_rate

                highest.append((server, highest_rate(server, asked.load, asked.slo)))
        except OptionError as error:
            if _num_deployments(asked) == 1:
                raise
            problems.append(f"{server.deployment.label} is left out: {error}")
    if not points:
        raise OptionError("; ".join(problems))
    print(coloured("\n".join(_screen(options, asked, points, highest)), sys.stdout))
    failed = [text for one in asked.requirements for text in one.failures(points)]
    problems += _write(options, asked, points, highest)
    tell_problems([*problems, *failed])
    if failed:
        return ExitCode.JUDGED
    return ExitCode.OK


# -- what is asked for -----------------------------------------------------------------------------


def _asked(options: argparse.Namespace) -> _Asked:
    """The command line as values, before anything is recorded; OptionError, UnknownGPUError."""
    from neusight.integrations.serving.requirements import parse_requirements
    from neusight.serving.figures import parse_slo
    from neusight.serving.load import read_requests
    from neusight.serving.quantization import QUANTIZATIONS, require_quantization

    names = _words(options.gpu)
    gpus = tuple(dict.fromkeys(find_gpu(name) for name in names))
    quantizations = tuple(_words([options.quantization]))
    for name in quantizations:
        if name not in ("none", *QUANTIZATIONS):
            raise OptionError(
                f"--quantization is {name!r}; it is none, {' or '.join(QUANTIZATIONS)}"
            )
        if len(gpus) * len(quantizations) == 1:
            require_quantization(name, gpus[0])
    prices = parse_prices(options.price)
    unasked = [name for name in prices if name not in [gpu.name for gpu in gpus]]
    if unasked:
        raise OptionError(f"--price names {unasked[0]}, which is not among the GPUs asked for")
    _require_ranges(options)
    requests = tuple(read_requests(options.load)) if options.load else ()
    return _Asked(
        gpus=gpus,
        ranks=tuple(_whole_numbers(options.tp, "--tp")),
        quantizations=tuple("" if name == "none" else name for name in quantizations),
        rates=tuple(_rates(options)),
        slo=parse_slo(options.slo, attainment=options.attainment),
        load=None if options.load else _load(options),
        requests=requests,
        requirements=tuple(parse_requirements(options.require)),
        prices=prices,
    )


#: Options that are whole numbers above zero, shares, and times.
_COUNTS = ("requests", "turns", "max_num_seqs", "max_num_batched_tokens", "block_size", "replicas")
_SHARES = ("prefix_hit_rate", "acceptance", "gpu_memory_utilization")


def _require_ranges(options: argparse.Namespace) -> None:
    for name in _COUNTS:
        if getattr(options, name) < 1:
            raise OptionError(f"{_option(name)} is {getattr(options, name)}; it is 1 or more")
    for name in ("max_model_len", "num_gpu_blocks_override"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"{_option(name)} is {value}; it is 1 or more")
    for name in _SHARES:
        if not 0 <= getattr(options, name) <= 1:
            raise OptionError(f"{_option(name)} is {getattr(options, name):g}; it is 0 to 1")
    for name in ("users", "speculative_tokens", "seed", "think"):
        if not 0 <= getattr(options, name) < math.inf:
            raise OptionError(f"{_option(name)} is {getattr(options, name)}; it is not below 0")
    if not 0 < options.burstiness < math.inf:
        raise OptionError(f"--burstiness is {options.burstiness:g}; it is above 0")
    if options.users and (options.rate or options.load):
        raise OptionError("--users is instead of --rate and --load: give one of them")
    if options.load and (options.rate or options.input or options.output):
        raise OptionError("--load states arrivals and lengths: leave --rate, --input, --output out")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _words(texts: Sequence[str]) -> list[str]:
    words = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


def _whole_numbers(text: str, option: str) -> list[int]:
    words = _words([text])
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise OptionError(f"{option} is {text!r}; it is a number above 0, or several: 1,2,4")
    return [int(word) for word in words]


def _rates(options: argparse.Namespace) -> list[float]:
    if options.users or options.load:
        return []
    found: list[float] = []
    for word in _words([options.rate]) or ["1"]:
        try:
            rate = float(word)
        except ValueError:
            rate = 0.0
        if not 0 < rate < math.inf:
            raise OptionError(f"--rate is {options.rate!r}; it is requests a second, as 1,2,4")
        found.append(rate)
    return found


def _load(options: argparse.Namespace) -> Load:
    from neusight.serving.load import Load, RequestClass, parse_lengths

    inputs = [parse_lengths(text, option="--input") for text in options.input or ["1024"]]
    outputs = [parse_lengths(text, option="--output") for text in options.output or ["256"]]
    count = max(len(inputs), len(outputs))
    lists = {"--input": inputs, "--output": outputs, "--share": options.share or [1.0],
             "--priority": options.priority or [0]}  # fmt: skip
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise OptionError(f"{name} is given {len(values)} times for {count} classes")
    if any(not 0 < share < math.inf for share in lists["--share"]):
        raise OptionError("--share is above 0")
    columns = [values * count if len(values) == 1 else values for values in lists.values()]
    classes = tuple(
        RequestClass(one, other, share, priority, name=f"class {at + 1}" if count > 1 else "")
        for at, (one, other, share, priority) in enumerate(zip(*columns, strict=True))
    )
    return Load(
        classes=classes,
        num_requests=options.requests,
        arrivals="closed" if options.users else options.arrivals,
        burstiness=options.burstiness,
        users=min(options.users, options.requests),
        think_s=options.think,
        turns=options.turns,
        hit_rate=options.prefix_hit_rate,
        seed=options.seed,
    )


# -- what is served --------------------------------------------------------------------------------


def _num_deployments(asked: _Asked) -> int:
    return len(asked.gpus) * len(asked.ranks) * len(asked.quantizations)


def _servers(options: argparse.Namespace, asked: _Asked) -> list[Server]:
    from neusight.forecast import forecast_options
    from neusight.integrations.serving.service import Deployment, Draft, Server, ServerSettings
    from neusight.serving.prices import Engine

    settings = ServerSettings(
        engine=Engine(options.engine, overlaps=not options.no_async_scheduling),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks_override,
        utilization=options.gpu_memory_utilization,
        chunked_prefill=not options.no_chunked_prefill,
        keeps_prefixes=not options.no_prefix_caching,
        policy=options.policy,
        batching=options.batching,
        kv_dtype=_KV_DTYPES[options.kv_cache_dtype],
        drafts=options.speculative_tokens,
        acceptance=options.acceptance,
        seed=options.seed,
    )
    found: list[Server] = []
    model: ServedModel | None = None
    draft: ServedModel | None = None
    for gpu in asked.gpus:
        if model is None or options.engine != "vllm":  # what eager torch runs depends on the GPU
            model = _model(options.model, gpu, options)
            draft = _model(options.draft, gpu, options) if options.draft else None
        priced = forecast_options(
            gpu, predictor=options.predictor, calibration=options.calibration, host=options.host,
            topology=options.topology,
        )  # fmt: skip
        for ranks in asked.ranks:
            for quantization in asked.quantizations:
                found.append(
                    Server(
                        model,
                        Deployment(gpu, ranks, quantization, options.replicas),
                        settings,
                        priced,
                        draft=Draft(draft),
                        price=asked.prices.get(gpu.name),
                    )
                )
    return found


def _model(what: str, gpu: GPU, options: argparse.Namespace) -> ServedModel:
    from neusight.integrations.serving.model import recorded_model

    if not options.quiet:
        print(f"neusight: recording {what}", file=sys.stderr, flush=True)
    return recorded_model(what, gpu, dtype=options.dtype, engine=options.engine)


def _points(server: Server, asked: _Asked) -> list[LoadPoint]:
    if asked.load is None:
        label = f"{len(asked.requests):,} requests"
        return [server.under(asked.requests, label=label, rate=None, slo=asked.slo)]
    if asked.load.arrivals == "closed":
        requests = asked.load.requests(most_tokens=server.max_model_len)
        label = f"{asked.load.users:,} users"
        return [server.under(requests, label=label, rate=None, slo=asked.slo)]
    return [server.at_rate(asked.load, rate, asked.slo) for rate in asked.rates]


# -- what is shown ---------------------------------------------------------------------------------


def _screen(
    options: argparse.Namespace,
    asked: _Asked,
    points: list[LoadPoint],
    highest: list[tuple[Server, LoadPoint | None]],
) -> list[str]:
    from neusight.integrations.serving.screen import (
        explanation_lines,
        point_lines,
        server_lines,
        slo_words,
        table_lines,
    )

    lines: list[str] = []
    if options.quiet:
        return table_lines(points, asked.slo)
    for server in dict.fromkeys(point.server for point in points):
        lines += [*server_lines(server), ""]
    if asked.load is not None:
        lines += [_load_words(asked.load), ""]
    if len(points) == 1:
        lines += [*point_lines(points[0], asked.slo)]
    else:
        lines += table_lines(points, asked.slo)
        lines += _saturations(points)
    for server, point in highest:
        lines += ["", *_highest_lines(server, point, slo_words(asked.slo), asked)]
    return [*lines, "", *explanation_lines()]


def _load_words(load: Load) -> str:
    kinds = "; ".join(f"{one.input} tokens in, {one.output} out" for one in load.classes)
    arrivals = f"{load.users:,} users" if load.arrivals == "closed" else f"{load.arrivals} arrivals"
    turns = f", sessions of {load.turns} turns" if load.turns > 1 else ""
    return f"{load.num_requests:,} requests, {arrivals}{turns}: {kinds}"


def _saturations(points: list[LoadPoint]) -> list[str]:
    return [
        f"  WARNING   {point.server.deployment.label}, {point.label}: {point.figures.saturation}"
        for point in points
        if point.figures.saturation
    ]


def _highest_lines(server: Server, point: LoadPoint | None, words: str, asked: _Asked) -> list[str]:
    label = server.deployment.label
    if point is None or point.rate is None:
        return [f"{label}: no rate keeps {words} for {asked.slo.attainment:.0%} of requests"]
    found = point.figures
    dollars = found.dollars_per_million_tokens
    cost = "" if dollars is None else f", ${dollars:,.2f} a million tokens"
    return [
        f"{label}: up to {point.rate:,.3g} requests/s keep {words} for "
        f"{asked.slo.attainment:.0%} of requests: {found.output_tokens_per_s:,.0f} tokens/s{cost}"
    ]


def _write(
    options: argparse.Namespace,
    asked: _Asked,
    points: list[LoadPoint],
    highest: list[tuple[Server, LoadPoint | None]],
) -> list[str]:
    problems: list[str] = []
    if options.json:
        path = options.json
        problems += tried(lambda: write_json(path, _document(points, highest)), path)
    if options.html:
        from neusight.integrations.report.html import report_date
        from neusight.integrations.serving.page import write_serving_page

        html = options.html
        words = shlex.join(["neusight", *options.own_words])
        problems += tried(
            lambda: write_serving_page(
                html, points, highest, slo=asked.slo, command=words, date=report_date()
            ),
            html,
        )
    if options.trace:
        from neusight.integrations.serving.timeline import write_serving_timeline

        trace = options.trace
        problems += tried(lambda: write_serving_timeline(trace, points), trace)
    for path in (options.json, options.html, options.trace):
        if path and not any(problem.startswith(str(path)) for problem in problems):
            print(f"written to {Path(path)}")
    return problems


def _document(
    points: list[LoadPoint], highest: list[tuple[Server, LoadPoint | None]]
) -> dict[str, Any]:
    from neusight.integrations.serving.screen import frontier_of

    frontier = frontier_of(points)
    return {
        "schema_version": SCHEMA_VERSION,
        "points": [{**point.to_json(), "is_on_frontier": point in frontier} for point in points],
        "highest_rates": [
            {
                "gpu": server.deployment.gpu.name,
                "tp": server.deployment.ranks,
                "quantization": server.deployment.quantization or None,
                "rate": None if point is None else point.rate,
                "figures": None if point is None else point.to_json(),
            }
            for server, point in highest
        ],
        "servers": [
            {
                "deployment": server.deployment.label,
                "model": server.model.name,
                "engine": server.settings.engine.name,
                "weight_bytes": server.capacity.weight_bytes,
                "kv_bytes": server.capacity.kv_bytes,
                "kv_bytes_per_token": server.program.kv_bytes_per_token,
                "kv_tokens": server.capacity.num_tokens,
                "unmatched_kernels": list(server.program.unmatched),
            }
            for server in dict.fromkeys(point.server for point in points)
        ],
    }

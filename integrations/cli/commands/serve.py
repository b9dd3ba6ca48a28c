"""`neusight serve`: forecasts a model server under a load of requests."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.arguments import add_options
from neusight.integrations.cli.files import report_problems, write_and_name, write_json, write_text
from neusight.integrations.cli.screen import coloured
from neusight.predictors.errors import OptionError

if TYPE_CHECKING:
    from neusight.integrations.serving.model import ServedModel
    from neusight.integrations.serving.request import ServeRequest
    from neusight.integrations.serving.service import Deployment, LoadPoint, Server, ServerSettings
    from neusight.predictors.gpu import GPU

HELP = "forecast a model server under a load of requests"
DESCRIPTION = (
    "Forecast what a server of a causal model does under a load: time to the first token, time of "
    "each further one, throughput, cost, and the highest rate that keeps a limit. MODEL is the "
    "config.json or folder of a transformers model (no weights are read), FILE.py:FUNCTION that "
    "builds any causal model, or a recording of a generation (neusight run --save). Exit codes: 0 "
    "ok, 1 a --require is not met or a figure is worse than in --baseline, 2 wrong use."
)

_KV_DTYPES = {"auto": "", "fp8": "float8_e4m3fn"}


def add_arguments(serve: argparse.ArgumentParser) -> None:
    """The options of `neusight serve`."""
    serve.add_argument("model", metavar="MODEL", help="config.json, its folder, FILE.py:FUNCTION, "
                       "or a recording of a generation")  # fmt: skip
    add_options(serve, "--gpu", required=True, metavar="NAME[,NAME…]")
    _add_deployment(serve)
    _add_load(serve)
    _add_arrivals(serve)
    _add_scheduler(serve)
    _add_drafts(serve)
    _add_results(serve)


def _add_deployment(serve: argparse.ArgumentParser) -> None:
    from neusight.serving.quantization import QUANTIZATIONS

    serve.add_argument("--tp", default="1", metavar="N[,N…]",
                       help="GPUs that share each layer (tensor parallel), also several to "
                       "compare (1)")  # fmt: skip
    serve.add_argument("--pp", default="1", metavar="N[,N…]",
                       help="GPUs in a row, each with some of the layers (pipeline parallel), also "
                       "several to compare (1)")  # fmt: skip
    serve.add_argument("--enable-expert-parallel", action="store_true",
                       help="GPUs of --tp have whole experts, not a part of each")  # fmt: skip
    serve.add_argument("--replicas", type=int, default=1, metavar="N",
                       help="copies of the server that share the requests (1)")  # fmt: skip
    serve.add_argument("--quantization", default="", metavar="NAME[,NAME…]",
                       help=f"of the layers' weights: none, {', '.join(QUANTIZATIONS)}; also "
                       "several to compare (what the config says)")  # fmt: skip
    serve.add_argument("--lora-adapters", type=int, default=0, metavar="N",
                       help="LoRA adapters that are loaded at once (0)")  # fmt: skip
    serve.add_argument("--lora-rank", type=int, default=16, metavar="R", help="their rank (16)")
    serve.add_argument("--kv-cache-dtype", choices=tuple(_KV_DTYPES), default="auto",
                       help="of keys and values in the cache (the model's)")  # fmt: skip
    serve.add_argument("--dtype", choices=("float16", "bfloat16"), default="",
                       help="of weights and activations (the config's)")  # fmt: skip
    serve.add_argument("--engine", choices=("vllm", "compiled", "eager"), default="vllm",
                       help="what runs the model: vLLM's fused kernels in CUDA graphs, "
                       "torch.compile, or eager PyTorch (vllm)")  # fmt: skip
    add_options(serve, "--topology", "--predictor", "--calibration", "--host")


def _add_load(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--input", action="append", default=[], metavar="TOKENS",
                       help="tokens of a prompt: 1024, uniform:100-2000 or lognormal:500,0.8 "
                       "(1024); given several times: classes of requests")  # fmt: skip
    serve.add_argument("--output", action="append", default=[], metavar="TOKENS",
                       help="tokens of an answer, likewise (256)")  # fmt: skip
    serve.add_argument("--share", action="append", default=[], type=float, metavar="S",
                       help="share of each class among all (equal)")  # fmt: skip
    serve.add_argument("--priority", action="append", default=[], type=int, metavar="P",
                       help="of each class, lower first (--policy priority)")  # fmt: skip
    serve.add_argument("--rate", default="", metavar="R[,R…]",
                       help="requests that arrive a second, also several (1)")  # fmt: skip
    serve.add_argument("--requests", type=int, default=500, metavar="N", help="how many (500)")
    serve.add_argument("--seed", type=int, default=0, metavar="N", help="of all chance (0)")


def _add_arrivals(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--arrivals", choices=("poisson", "gamma", "uniform"), default="poisson",
                       help="how they arrive (poisson)")  # fmt: skip
    serve.add_argument("--burstiness", type=float, default=1.0, metavar="C",
                       help="coefficient of variation between gamma arrivals (1)")  # fmt: skip
    serve.add_argument("--users", type=int, default=0, metavar="N",
                       help="instead of a rate: N users who each send the next request after "
                       "their answer")  # fmt: skip
    serve.add_argument("--think", type=float, default=0.0, metavar="S",
                       help="seconds from an answer to the user's next request")  # fmt: skip
    serve.add_argument("--turns", type=int, default=1, metavar="N",
                       help="requests of a session, each after all before it (1)")  # fmt: skip
    serve.add_argument("--prefix-hit-rate", type=float, default=0.0, metavar="S",
                       help="share of earlier turns in the prefix cache (0)")  # fmt: skip
    serve.add_argument("--load", metavar="FILE.csv",
                       help="instead of all that: arrival_s, input_tokens, output_tokens of each "
                       "request")  # fmt: skip


def _add_scheduler(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--max-num-seqs", type=int, default=256, metavar="N",
                       help="sequences that run at once (256)")  # fmt: skip
    serve.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N",
                       help="tokens of a step (2048)")  # fmt: skip
    serve.add_argument("--max-model-len", type=int, metavar="N",
                       help="tokens of a request and its answer")  # fmt: skip
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
                       help="static: a batch ends with its longest answer")  # fmt: skip


def _add_drafts(serve: argparse.ArgumentParser) -> None:
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
    serve.add_argument("--plan", action="store_true",
                       help="find the cheapest deployment that keeps --slo at --rate: numbers of "
                       "GPUs and replicas, what --quantization names, tokens of a step (as "
                       "`neusight plan --serve MODEL`)")  # fmt: skip
    serve.add_argument("--attainment", type=float, default=0.9, metavar="S",
                       help="share of requests that must keep them (0.9)")  # fmt: skip
    add_options(serve, "--price", help="dollars of a GPU an hour")
    serve.add_argument("--require", default="", metavar="LIMITS",
                       help="exit with 1 unless the figures keep these: "
                       "tpot_p50<=30ms,ttft_p99<=2s,output_tokens_per_s>=1000")  # fmt: skip
    serve.add_argument("--baseline", metavar="FILE",
                       help="exit with 1 where a figure is worse than in this earlier "
                       "result")  # fmt: skip
    serve.add_argument("--update", action="store_true", help="write the result to --baseline")
    serve.add_argument("--tolerance", default="0.5%", metavar="SHARE",
                       help="how much worse than --baseline is no regression (0.5%%)")  # fmt: skip
    add_options(serve, "--json")
    serve.add_argument("--html", metavar="FILE", help="write a page with curves there")
    serve.add_argument("--trace", metavar="FILE",
                       help="write the server's timeline there, for ui.perfetto.dev")  # fmt: skip
    serve.add_argument("--quiet", action="store_true", help="print a line for each load only")


def run(options: argparse.Namespace) -> int:
    """Serves the load on each deployment; the exit code."""
    from neusight.integrations.serving.request import serve_request
    from neusight.integrations.serving.screen import screen_lines

    request = serve_request(options)
    stored = _stored(options)
    servers = _servers(options, request)
    if options.plan:
        points, highest, problems, lines = _planned(servers, request)
    else:
        points, highest, problems = _served(servers, request)
        lines = screen_lines(points, highest, request, is_quiet=options.quiet)
    print(coloured("\n".join(lines), sys.stdout))
    failed = [text for one in request.requirements for text in one.failures(points)]
    if stored is not None:
        failed += _judged(options, stored, points, highest)
    unwritten = _write(options, request, points, highest)
    report_problems([*problems, *unwritten, *failed])
    if failed:
        return ExitCode.JUDGED
    return ExitCode.WRONG_USE if unwritten else ExitCode.OK


Highest = list[tuple["Server", "LoadPoint | None"]]


def _served(
    servers: list[Server], request: ServeRequest
) -> tuple[list[LoadPoint], Highest, list[str]]:
    """Each deployment under each load, the highest rates, and why some are left out."""
    from neusight.integrations.serving.service import highest_rate

    points: list[LoadPoint] = []
    highest: Highest = []
    problems: list[str] = []
    for server in servers:
        try:
            points += _points(server, request)
            if request.slo and request.load is not None and request.load.arrivals != "closed":
                highest.append((server, highest_rate(server, request.load, request.slo)))
        except OptionError as error:
            if request.num_deployments == 1:
                raise
            problems.append(f"{server.deployment.label} is left out: {error}")
    if not points:
        raise OptionError("; ".join(problems))
    return points, highest, problems


def _planned(
    servers: list[Server], request: ServeRequest
) -> tuple[list[LoadPoint], Highest, list[str], list[str]]:
    """The cheapest deployments, what is left out, and what is shown."""
    from neusight.integrations.serving.search import cheapest, plan_lines

    assert request.load is not None
    points, problems = cheapest(servers, request.load, request.slo, request.rates[0])
    if not points:
        raise OptionError("; ".join([*plan_lines([], request.rates[0]), *problems]))
    return points, [], problems, plan_lines(points, request.rates[0])


def _settings(options: argparse.Namespace) -> ServerSettings:
    from neusight.integrations.serving.service import ServerSettings
    from neusight.serving.prices import Engine
    from neusight.serving.quantization import Adapters

    count = options.lora_adapters
    return ServerSettings(
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
        adapters=Adapters(count, options.lora_rank) if count else None,
        expert_parallel=options.enable_expert_parallel,
        seed=options.seed,
    )


def _servers(options: argparse.Namespace, request: ServeRequest) -> list[Server]:
    from neusight.integrations.serving.service import Deployment

    settings = _settings(options)
    found: list[Server] = []
    models: tuple[ServedModel, ServedModel | None] | None = None
    for gpu in request.gpus:
        if models is None or options.engine != "vllm":  # what torch runs depends on the GPU
            draft = _model(options.draft, gpu, options) if options.draft else None
            models = _model(options.model, gpu, options), draft
        deployments = [
            Deployment(gpu, ranks, quantization, options.replicas, stages)
            for ranks in request.ranks
            for stages in request.stages
            for quantization in request.quantizations or (_quantization_of(models[0]),)
        ]
        found += _of_gpu(options, request, models, deployments, settings)
    return found


def _quantization_of(model: ServedModel) -> str:
    from neusight.serving.quantization import QUANTIZATIONS

    name = model.quantization
    if name and name not in QUANTIZATIONS:
        raise OptionError(
            f"the config of {model.name} says that its weights are quantized with {name}, which is "
            f"not served as such. State what comes nearest: --quantization "
            f"{', '.join(QUANTIZATIONS)} or none"
        )
    return name


def _of_gpu(
    options: argparse.Namespace,
    request: ServeRequest,
    models: tuple[ServedModel, ServedModel | None],
    deployments: list[Deployment],
    settings: ServerSettings,
) -> list[Server]:
    """The servers on one GPU."""
    from neusight.forecast import forecast_options
    from neusight.integrations.serving.service import Draft, Server

    gpu = deployments[0].gpu
    priced = forecast_options(
        gpu,
        predictor=options.predictor,
        calibration=options.calibration,
        host=options.host,
        topology=options.topology,
    )
    model, draft = models
    price = request.prices.get(gpu.name)
    return [
        Server(model, one, settings, priced, draft=Draft(draft), price=price) for one in deployments
    ]


def _model(what: str, gpu: GPU, options: argparse.Namespace) -> ServedModel:
    from neusight.integrations.serving.model import recorded_model

    if not options.quiet:
        print(f"neusight: recording {what}", file=sys.stderr, flush=True)
    return recorded_model(what, gpu, dtype=options.dtype, engine=options.engine)


def _points(server: Server, request: ServeRequest) -> list[LoadPoint]:
    if request.load is None:
        label = f"{len(request.requests):,} requests"
        return [server.under(request.requests, label=label, rate=None, slo=request.slo)]
    if request.load.arrivals == "closed":
        requests = request.load.requests(most_tokens=server.max_model_len)
        label = f"{request.load.users:,} users"
        return [server.under(requests, label=label, rate=None, slo=request.slo)]
    return [server.at_rate(request.load, rate, request.slo) for rate in request.rates]


# -- what is written -------------------------------------------------------------------------------


def _write(
    options: argparse.Namespace,
    request: ServeRequest,
    points: list[LoadPoint],
    highest: Highest,
) -> list[str]:
    """Writes what was asked for; what could not be written."""
    from neusight.integrations.serving.document import serving_document
    from neusight.integrations.serving.timeline import write_serving_timeline

    baseline = options.baseline if options.update else None
    return write_and_name(
        [
            (baseline, lambda path: write_json(path, serving_document(points, highest))),
            (options.json, lambda path: write_json(path, serving_document(points, highest))),
            (options.html, lambda path: _write_page(path, options, request, points, highest)),
            (options.trace, lambda path: write_serving_timeline(path, points)),
        ]
    )


def _stored(options: argparse.Namespace) -> dict[str, Any] | None:
    """The baseline, read before anything is recorded; OptionError, BaselineError."""
    from neusight.integrations.serving.baseline import parse_tolerance, read_result

    parse_tolerance(options.tolerance)
    if options.update and not options.baseline:
        raise OptionError("--update writes --baseline FILE, which is not given")
    return read_result(options.baseline) if options.baseline and not options.update else None


def _judged(
    options: argparse.Namespace,
    stored: dict[str, Any],
    points: list[LoadPoint],
    highest: Highest,
) -> list[str]:
    """What is worse than the baseline; prints what else differs."""
    from neusight.integrations.serving.baseline import judge, parse_tolerance
    from neusight.integrations.serving.document import serving_document

    tolerance = parse_tolerance(options.tolerance)
    found = judge(serving_document(points, highest), stored, tolerance=tolerance)
    state = f"{len(found.failures)} worse" if found.failures else "nothing is worse"
    print(f"baseline  {options.baseline}: {state}")
    for note in found.notes:
        print(f"  {note}")
    return list(found.failures)


def _write_page(
    path: str,
    options: argparse.Namespace,
    request: ServeRequest,
    points: list[LoadPoint],
    highest: Highest,
) -> None:
    from neusight.integrations.report.html import report_date
    from neusight.integrations.serving.page import serving_page

    command = shlex.join(["neusight", *options.own_words])
    page = serving_page(points, highest, slo=request.slo, command=command, date=report_date())
    write_text(path, page)

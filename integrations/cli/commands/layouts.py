"""`neusight plan --model`: finds how a model's training is best shared by many GPUs."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.fake_cuda.distributed.rank import GPUS_PER_NODE, Rank
from neusight.integrations.cli.files import report_problems, write_files, write_json
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanRequest, evaluated
from neusight.integrations.cli.planning.processes import in_processes, num_cores
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import hide_gpus
from neusight.integrations.report.side_by_side import parse_prices
from neusight.interrupts import raises_from_here
from neusight.predictors.clusters.named import find_topology, with_cards
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.registry import find_predictor, predictor_at

if TYPE_CHECKING:
    from neusight.integrations.layouts.pricing import LayoutPrice
    from neusight.integrations.layouts.report import LayoutReport
    from neusight.integrations.layouts.search import SearchRequest
    from neusight.integrations.layouts.whole_training import WholeTraining

#: What a host writes of a checkpoint, 1e9 bytes per second: a share of a parallel file system. An
#: assumption: storage differs by a hundred times.
_STORAGE_GBPS = 2.0
#: Longest time between failures that is taken for one, hours: a million years.
_MOST_HOURS = 1e10

#: Steady steps of a script that is run whole: they are alike.
_WHOLE_STEPS = 1

_SEQUENCE = 4096
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)")
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
#: Of a whole training, counted in powers of ten.
_TRAINING = re.compile(r"(\d+(?:\.\d+)?)\s*([mMbBtT]?)")
_DECIMAL = {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}


def add_model_arguments(plan: argparse.ArgumentParser) -> None:
    """The options of a search for layouts."""
    found = plan.add_argument_group("a model instead of a script")
    found.add_argument("--model", metavar="FILE",
                       help="a config.json of transformers, or file.py:function that returns a "
                       "model: finds how --world-size ranks share --tokens of a step")  # fmt: skip
    found.add_argument("--sequence", type=int, default=_SEQUENCE, metavar="N",
                       help=f"tokens of a sequence ({_SEQUENCE})")  # fmt: skip
    found.add_argument("--script", metavar="FILE", help="write a script that trains in the best "
                       "layout there")  # fmt: skip
    found.add_argument("--float8", action="store_true",
                       help="try the blocks' linear layers in float8 too (torchao); it changes "
                       "what is computed")  # fmt: skip
    found.add_argument("--storage-gbps", type=float, default=_STORAGE_GBPS, metavar="G",
                       help="1e9 bytes per second that a host writes of a checkpoint "
                       f"({_STORAGE_GBPS:g})")  # fmt: skip
    found.add_argument("--loader-tokens", type=float, default=inf, metavar="N",
                       help="tokens that the data loaders of a host deliver a second, for which "
                       "its ranks wait (as many as they take)")  # fmt: skip
    found.add_argument("--train-tokens", metavar="N",
                       help="tokens of the whole training, like 15T: days and cost")  # fmt: skip
    found.add_argument("--mtbf", type=float, metavar="HOURS",
                       help="mean time between failures of one GPU, for --train-tokens (50,000 "
                       "by Llama 3's report: 419 in 54 days of 16,384)")  # fmt: skip


def token_count(text: str) -> int:
    """A count of tokens: "4M" is 4 x 2**20; OptionError.

    >>> token_count("4M"), token_count("8k"), token_count("12288")
    (4194304, 8192, 12288)
    """
    found = _COUNT.fullmatch(text.strip())
    count = float(found[1]) * _FACTORS[found[2].lower()] if found else 0.0
    if not count or count != int(count):
        raise OptionError(f"--tokens is {text!r}; it must be a number above 0, like 4M or 1048576")
    return int(count)


def _whole_training(options: argparse.Namespace) -> WholeTraining | None:
    """The training whose length is asked for; OptionError for what means nothing."""
    from neusight.integrations.layouts.whole_training import WholeTraining

    if options.mtbf is not None and not 0.0 < options.mtbf < _MOST_HOURS:
        raise OptionError(
            f"--mtbf is {options.mtbf:g}; it must be hours between 0 and {_MOST_HOURS:g}"
        )
    if options.train_tokens is None:
        if options.mtbf is not None:
            raise OptionError("--mtbf is for a whole training: say its --train-tokens too")
        return None
    found = _TRAINING.fullmatch(options.train_tokens.strip())
    tokens = float(found[1]) * _DECIMAL[found[2].upper()] if found else 0.0
    if not tokens:
        raise OptionError(
            f"--train-tokens is {options.train_tokens!r}; it must be a number above 0, like 15T"
        )
    return WholeTraining(tokens, options.mtbf)


def plan_layouts(options: argparse.Namespace, gpu_names: list[str]) -> int:
    """Searches, prints what was found and writes what was asked for; the exit code."""
    hide_gpus()
    raises_from_here()
    tokens, prices = _checked(options), parse_prices(options.price)
    training = _whole_training(options)
    from neusight.integrations.layouts.report import LayoutReport
    from neusight.integrations.layouts.search import find_layouts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = _request(options, tokens, gpu_names)
        found = find_layouts(
            request,
            in_processes,
            run_whole=partial(_run_whole, options, request),
            report=lambda text: (
                None if options.quiet else print(f"neusight: {text}", file=sys.stderr, flush=True)
            ),
        )
    names = tuple(gpu.name for gpu in request.gpus)
    script = options.script if found.prices else None
    report = LayoutReport(found, request.shape, request.work, prices, names, script, training)
    print(report.text())
    code = report_problems(_written(options, request, report))
    if not found.prices:
        return ExitCode.JUDGED if found.least_needed_bytes else ExitCode.SCRIPT_FAILED
    return code


def _written(
    options: argparse.Namespace, request: SearchRequest, report: LayoutReport
) -> list[str]:
    """Writes what was asked for; what went wrong."""
    from neusight.integrations.layouts.report import script_text

    def write_script(path: str) -> None:
        found, per_node = report.found, request.gpus_per_node
        text = script_text(request.source, found.prices[0], request.work, gpus_per_node=per_node)
        Path(path).write_text(text, encoding="utf-8")

    _, problems = write_files(
        [
            (report.script, write_script),
            (options.json, lambda path: write_json(path, report.to_json())),
        ]
    )
    return problems


def _request(options: argparse.Namespace, tokens: int, gpu_names: list[str]) -> SearchRequest:
    from neusight.integrations.layouts.block import model_shape
    from neusight.integrations.layouts.layout import StepLoad
    from neusight.integrations.layouts.search import SearchRequest

    work = StepLoad(tokens, options.sequence)
    gpus = tuple(_in_its_system(options, find_gpu(name)) for name in gpu_names)
    return SearchRequest(
        source=options.model,
        shape=model_shape(options.model),
        work=work,
        gpus=gpus,
        world_sizes=tuple(_world_sizes(options.world_size)),
        predictor=find_predictor(predictor_at(options.clock, options.predictor)),
        gpus_per_node=_gpus_per_node(options, gpus[0]),
        storage_gbps=options.storage_gbps,
        jobs=options.jobs or num_cores(),
        loaded_tokens_per_s=options.loader_tokens,
        float8=options.float8,
    )


def _in_its_system(options: argparse.Namespace, gpu: GPU) -> GPU:
    """The GPU in the topology, and with the network, that are stated."""
    if options.topology is not None:
        gpu = replace(gpu, topology=find_topology(options.topology))
    if options.network_gbps is None:
        return gpu
    per_node = _gpus_per_node(options, gpu)
    return replace(gpu, topology=with_cards(options.network_gbps, system_of(gpu), per_node))


def _gpus_per_node(options: argparse.Namespace, gpu: GPU) -> int:
    return int(options.gpus_per_node or min(GPUS_PER_NODE, system_of(gpu).gpus_per_node))


def _run_whole(
    given: argparse.Namespace, request: SearchRequest, price: LayoutPrice
) -> float | str:
    """The step of the layout's script, µs, or why it failed. Of a pipeline a rank of each stage
    runs."""
    from neusight.integrations.layouts.report import script_text

    layout, per_node = price.layout, request.gpus_per_node
    others = layout.world_size // layout.pipeline
    ranks = tuple(range(0, layout.world_size, others)) if layout.pipeline > 1 else None
    options = ProgramOptions(
        steps=_WHOLE_STEPS,
        predictor=predictor_at(given.clock, given.predictor),
        topology=given.topology,
        network_gbps=given.network_gbps,
    )
    plan = PlanRequest((find_gpu(price.gpu),), options, {}, ranks)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        text = script_text(request.source, price, request.work, gpus_per_node=per_node)
        script.write_text(text, encoding="utf-8")
        rank = Rank(world_size=layout.world_size, gpus_per_node=min(per_node, layout.world_size))
        [point] = evaluated(plan, Candidate((), Program(str(script), ()), rank))
    return point.problem if point.row is None else point.row.latency_us


def _checked(options: argparse.Namespace) -> int:
    """The tokens of a step; OptionError for what means nothing to a search for layouts."""
    if options.sweep or options.ray or options.rank:
        raise OptionError("--sweep, --rank and --ray are for a script; --model tries all layouts")
    if options.world_size is None or options.tokens is None:
        raise OptionError(
            "--model wants to know --world-size and the --tokens of a step: "
            "neusight plan --model config.json --gpu H100 --world-size 64 --tokens 4M"
        )
    if not 0.0 < options.storage_gbps < inf:
        raise OptionError(f"--storage-gbps is {options.storage_gbps:g}; it must be above 0")
    if not options.loader_tokens > 0.0:
        raise OptionError(f"--loader-tokens is {options.loader_tokens:g}; it must be above 0")
    return token_count(options.tokens)


def _world_sizes(text: str) -> list[int]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise OptionError(f"--world-size is {text!r}; it must be a number, or several: 8,16,32")
    return [int(word) for word in words]

"""What a command line of `neusight serve` asks for, as values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from neusight.integrations.report.side_by_side import parse_prices
from neusight.integrations.serving.requirements import Requirement, parse_requirements
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.serving.figures import Slo, parse_slo
from neusight.serving.load import InferenceRequest, Load, RequestClass, parse_lengths, read_requests
from neusight.serving.quantization import QUANTIZATIONS, require_quantization


@dataclass(frozen=True)
class ServeRequest:
    """GPUs, how many share each layer and how many the layers, quantizations (none stated: the
    model's own) and loads: each of each is served."""

    gpus: tuple[GPU, ...]
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    quantizations: tuple[str, ...]
    rates: tuple[float, ...]
    slo: Slo
    load: Load | None
    requests: tuple[InferenceRequest, ...]
    requirements: tuple[Requirement, ...]
    prices: dict[str, float]

    @property
    def num_deployments(self) -> int:
        """Combinations of GPUs, ranks, stages and quantizations."""
        splits = len(self.ranks) * len(self.stages)
        return len(self.gpus) * splits * max(1, len(self.quantizations))


def serve_request(options: argparse.Namespace) -> ServeRequest:
    """The command line as values, before anything is recorded; OptionError, UnknownGPUError."""
    gpus = tuple(dict.fromkeys(find_gpu(name) for name in _words(options.gpu)))
    quantizations = _quantizations(options, gpus)
    prices = parse_prices(options.price, gpus=[gpu.name for gpu in gpus])
    _require_ranges(options)
    requests = tuple(read_requests(options.load)) if options.load else ()
    return ServeRequest(
        gpus=gpus,
        ranks=_PLANNED_RANKS
        if options.plan and options.tp == "1"
        else tuple(_whole_numbers(options.tp, "--tp")),
        stages=tuple(_whole_numbers(options.pp, "--pp")),
        quantizations=quantizations,
        rates=tuple(_rates(options)),
        slo=parse_slo(options.slo, attainment=options.attainment),
        load=None if options.load else _load(options),
        requests=requests,
        requirements=tuple(parse_requirements(options.require)),
        prices=prices,
    )


def _quantizations(options: argparse.Namespace, gpus: Sequence[GPU]) -> tuple[str, ...]:
    """Their names, "" for none."""
    names = _words([options.quantization])
    for name in names:
        if name not in ("none", *QUANTIZATIONS):
            raise OptionError(
                f"--quantization is {name!r}; it is none, {' or '.join(QUANTIZATIONS)}"
            )
        if len(gpus) * len(names) == 1 and name != "none":
            require_quantization(name, gpus[0])
    return tuple("" if name == "none" else name for name in names)


#: GPUs that share each layer where --plan looks for their number: those of a usual host.
_PLANNED_RANKS = (1, 2, 4, 8)

#: Options that are whole numbers above zero, shares, and times.
_COUNTS = (
    "requests",
    "turns",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "replicas",
    "lora_rank",
)
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
    for name in ("users", "speculative_tokens", "lora_adapters", "seed", "think"):
        if not 0 <= getattr(options, name) < math.inf:
            raise OptionError(f"{_option(name)} is {getattr(options, name)}; it is not below 0")
    if not 0 < options.burstiness < math.inf:
        raise OptionError(f"--burstiness is {options.burstiness:g}; it is above 0")
    _require_one_load(options)


def _require_one_load(options: argparse.Namespace) -> None:
    """OptionError where two options state the same, or one means nothing beside another."""
    if options.max_num_batched_tokens < options.max_num_seqs * (1 + options.speculative_tokens):
        raise OptionError(
            f"--max-num-batched-tokens is {options.max_num_batched_tokens}, fewer than "
            f"--max-num-seqs {options.max_num_seqs} sequences need: raise it or lower that"
        )
    if options.kv_cache_dtype == "fp8" and options.engine != "vllm":
        raise OptionError("--kv-cache-dtype fp8 is for --engine vllm")
    if options.pp != "1" and (options.draft or options.batching == "static"):
        other = "--draft" if options.draft else "--batching static"
        raise OptionError(f"--pp is for continuous batching of a model alone: leave {other} out")
    if options.plan and (options.load or options.users or not options.slo or
                         len(_words([options.rate])) != 1):  # fmt: skip
        raise OptionError(
            "--plan needs the limits and one rate: --slo ttft=500ms,tpot=30ms --rate 20"
        )
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
    return Load(
        classes=_classes(options),
        num_requests=options.requests,
        arrivals="closed" if options.users else options.arrivals,
        burstiness=options.burstiness,
        users=min(options.users, options.requests),
        think_s=options.think,
        turns=options.turns,
        hit_rate=options.prefix_hit_rate,
        seed=options.seed,
    )


def _classes(options: argparse.Namespace) -> tuple[RequestClass, ...]:
    """A class for each time that lengths are given; what is given once is alike for all."""
    inputs = [parse_lengths(text, option="--input") for text in options.input or ["1024"]]
    outputs = [parse_lengths(text, option="--output") for text in options.output or ["256"]]
    shares, priorities = options.share or [1.0], options.priority or [0]
    count = max(len(inputs), len(outputs))
    if any(not 0 < share < math.inf for share in shares):
        raise OptionError("--share is above 0")
    columns = zip(
        _each("--input", inputs, count),
        _each("--output", outputs, count),
        _each("--share", shares, count),
        _each("--priority", priorities, count),
        strict=True,
    )
    return tuple(
        RequestClass(one, other, share, priority, name=f"class {at + 1}" if count > 1 else "")
        for at, (one, other, share, priority) in enumerate(columns)
    )


Given = TypeVar("Given")


def _each(name: str, values: list[Given], count: int) -> list[Given]:
    if len(values) not in (1, count):
        raise OptionError(f"{name} is given {len(values)} times for {count} classes")
    return values * count if len(values) == 1 else values

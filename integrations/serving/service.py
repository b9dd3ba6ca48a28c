"""Servers under a load: each GPU, number of GPUs and quantization, at each rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neusight.forecast import ForecastOptions
from neusight.integrations.serving.model import ServedModel
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.serving.capacity import Capacity, capacity_of
from neusight.serving.figures import ServingFigures, Slo, serving_figures
from neusight.serving.load import InferenceRequest, Load
from neusight.serving.prices import (
    Engine,
    PipelinePrices,
    StepPrices,
    StepProgram,
    pipeline_programs,
)
from neusight.serving.quantization import Adapters, require_quantization
from neusight.serving.scheduler import (
    SchedulerOptions,
    ServerRun,
    StepBatch,
    StepCost,
    StepPricing,
    simulate,
)
from neusight.serving.static_batching import simulate_static

#: Sequences, and tokens of each in the cache, of the step of which shares are stated.
TYPICAL_SEQUENCES = 32
_TYPICAL_CONTEXT = 1024


@dataclass(frozen=True)
class Deployment:
    """GPUs that serve: `ranks` share each layer, `stages` share the layers, in `replicas`."""

    gpu: GPU
    ranks: int = 1
    quantization: str = ""
    replicas: int = 1
    stages: int = 1

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.ranks * self.stages * self.replicas

    @property
    def label(self) -> str:
        """What distinguishes it from others."""
        count = f"{self.num_gpus} x " if self.num_gpus > 1 else ""
        tp = f" tp {self.ranks}" if self.ranks > 1 else ""
        pp = f" pp {self.stages}" if self.stages > 1 else ""
        bits = f" {self.quantization}" if self.quantization else ""
        return f"{count}{self.gpu.name}{tp}{pp}{bits}"


@dataclass(frozen=True)
class ServerSettings:
    """The engine and its limits, alike for all deployments. `max_model_len` None: what the model
    and the cache allow."""

    engine: Engine
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    utilization: float = 0.9
    chunked_prefill: bool = True
    keeps_prefixes: bool = True
    policy: str = "fcfs"
    batching: str = "continuous"
    kv_dtype: str = ""
    drafts: int = 0
    acceptance: float = 0.0
    adapters: Adapters | None = None
    expert_parallel: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Draft:
    """What proposes tokens: a model of its own (None: the text itself, as prompt lookup does)."""

    model: ServedModel | None = None


@dataclass(frozen=True)
class LoadPoint:
    """A deployment under one load: `label` says which ("4 requests/s"), `rate` is what arrives a
    second where that is stated."""

    server: Server
    label: str
    rate: float | None
    runs: tuple[ServerRun, ...]
    figures: ServingFigures

    def is_good(self, slo: Slo) -> bool:
        """Whether enough requests keep the limits, and the server keeps up."""
        return self.figures.meets(slo) and not self.figures.saturation

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        deployment = self.server.deployment
        return {
            "gpu": deployment.gpu.name,
            "tp": deployment.ranks,
            "pp": deployment.stages,
            "replicas": deployment.replicas,
            "num_gpus": deployment.num_gpus,
            "quantization": deployment.quantization or None,
            "load": self.label,
            "rate": self.rate,
            **self.figures.to_json(),
        }


class Server:
    """A deployment of a model: its steps' prices and the space for its cache."""

    def __init__(
        self,
        model: ServedModel,
        deployment: Deployment,
        settings: ServerSettings,
        options: ForecastOptions,
        *,
        draft: Draft | None = None,
        price: float | None = None,
    ) -> None:
        self.model = model
        self.deployment = deployment
        self.settings = settings
        self.options = options
        self.draft = draft or Draft()
        self.price = price

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most."""
        return self.settings.max_num_batched_tokens

    def changed(self, *, replicas: int, step_tokens: int = 0) -> Server:
        """The same with other replicas and, if stated, other tokens of a step."""
        other = Server(
            self.model,
            replace(self.deployment, replicas=replicas),
            replace(self.settings, max_num_batched_tokens=step_tokens or self.step_tokens),
            self.options,
            draft=self.draft,
            price=self.price,
        )
        # neither depends on replicas or on the tokens of a step
        vars(other).update(programs=self.programs, prices=self.prices)
        return other

    @cached_property
    def programs(self) -> tuple[StepProgram, ...]:
        """What a step launches on one GPU of each stage; OptionError where that lacks the
        quantization."""
        if self.deployment.quantization:
            require_quantization(self.deployment.quantization, self.deployment.gpu)
        return self._programs(self.model)

    def _programs(self, model: ServedModel) -> tuple[StepProgram, ...]:
        return pipeline_programs(
            model.points,
            engine=self.settings.engine,
            stages=self.deployment.stages,
            parameter_bytes=model.parameter_bytes,
            ranks=self.deployment.ranks,
            expert_parallel=self.settings.expert_parallel and model is self.model,
            quantization=self.deployment.quantization,
            kv_dtype=self.settings.kv_dtype,
            host_us=model.host_us,
            windows=model.windows,
            recurrences=dict(model.recurrences),
            adapters=self.settings.adapters,
        )

    @cached_property
    def unmatched_share(self) -> float:
        """What the kernels that no pattern knew take of a step of some sequences."""
        context = TYPICAL_SEQUENCES * _TYPICAL_CONTEXT
        step = StepBatch(TYPICAL_SEQUENCES, context, (), TYPICAL_SEQUENCES)
        return self._stage_prices(self.programs)[self._tightest].unmatched_share(step)

    @cached_property
    def prices(self) -> StepPricing:
        """The price of its steps, the draft's included."""
        own = self._prices(self.programs)
        if self.draft.model is None or not self.settings.drafts:
            return own
        return _Drafted(own, self._prices(self._programs(self.draft.model)))

    def _prices(self, programs: Sequence[StepProgram]) -> StepPricing:
        stages = self._stage_prices(programs)
        return stages[0] if len(stages) == 1 else PipelinePrices(stages)

    def _stage_prices(self, programs: Sequence[StepProgram]) -> tuple[StepPrices, ...]:
        options = self.options
        gpu = options.gpu if options.topology is None else replace(
            options.gpu, topology=options.topology
        )  # fmt: skip
        return tuple(
            StepPrices(program, gpu, options.predictor, options.host, self.settings.engine)
            for program in programs
        )

    @cached_property
    def capacity(self) -> Capacity:
        """The space for the cache of one replica: of a pipeline, of the stage with the least."""
        return self._capacities[self._tightest]

    @property
    def program(self) -> StepProgram:
        """What a step launches on a GPU of the stage with the least space."""
        return self.programs[self._tightest]

    @cached_property
    def _tightest(self) -> int:
        counts = [capacity.num_blocks for capacity in self._capacities]
        return counts.index(min(counts))

    @cached_property
    def _capacities(self) -> list[Capacity]:
        settings = self.settings
        if len({bool(program.kv_bytes_per_token) for program in self.programs}) > 1:
            raise OptionError(
                f"--pp {self.deployment.stages}: some stages have attention and some only states, "
                "whose blocks hold different things. Use fewer stages."
            )
        return [
            capacity_of(
                program,
                self.deployment.gpu,
                utilization=settings.utilization,
                max_tokens=settings.max_num_batched_tokens,
                max_seqs=settings.max_num_seqs,
                block_size=settings.block_size,
                num_blocks=settings.num_blocks,
            )
            for program in self.programs
        ]

    @cached_property
    def max_model_len(self) -> int:
        """Tokens of a request at most; OptionError beyond the model's positions."""
        stated, positions = self.settings.max_model_len, self.model.max_positions
        if stated is not None and positions is not None and stated > positions:
            raise OptionError(
                f"--max-model-len is {stated:,}; the model has {positions:,} positions "
                "(max_position_embeddings)"
            )
        room = self.capacity.num_tokens
        if stated is not None and room < stated:
            raise OptionError(
                f"the KV cache of {self.deployment.label} holds {room:,} tokens, fewer than the "
                f"{stated:,} of --max-model-len: not even one such request fits. Lower it, or use "
                "more GPUs or fewer bits."
            )
        return stated or min(positions or room, room)

    @cached_property
    def scheduler(self) -> SchedulerOptions:
        """The scheduler's settings for one replica."""
        settings = self.settings
        return SchedulerOptions(
            num_blocks=self.capacity.num_blocks,
            block_size=self.capacity.block_size,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            chunked_prefill=settings.chunked_prefill,
            policy=settings.policy,  # type: ignore[arg-type]  # one of its choices
            # vLLM leaves prefix caching off for models with states
            keeps_prefixes=settings.keeps_prefixes and not self.program.recurrences,
            drafts=settings.drafts,
            acceptance=settings.acceptance,
            seed=settings.seed,
            window=self.program.window,
            window_share=self.program.window_share,
            stages=self.deployment.stages,
            state_blocks=self.capacity.state_blocks,
        )

    def under(
        self, requests: Sequence[InferenceRequest], *, label: str, rate: float | None, slo: Slo
    ) -> LoadPoint:
        """What it does under a load; replicas get the requests in turn."""
        count = self.deployment.replicas
        serve = simulate_static if self.settings.batching == "static" else simulate
        runs = tuple(
            serve(requests[at::count], self.scheduler, self.prices)
            for at in range(min(count, len(requests)))
        )
        figures = serving_figures(
            runs, self.deployment.gpu, num_gpus=self.deployment.num_gpus, slo=slo, price=self.price
        )
        return LoadPoint(self, label, rate, runs, figures)

    def at_rate(self, load: Load, rate: float, slo: Slo) -> LoadPoint:
        """The same under so many requests a second."""
        requests = replace(load, rate=rate).requests(most_tokens=self.max_model_len)
        return self.under(requests, label=f"{rate:g} requests/s", rate=rate, slo=slo)


@dataclass(frozen=True)
class _Drafted:
    """A step in which a smaller model first proposes tokens, one after the other."""

    own: StepPricing
    draft: StepPricing

    def __call__(self, batch: StepBatch) -> StepCost:
        cost = self.own(batch)
        if not batch.decodes:
            return cost
        one = StepBatch(batch.decodes, batch.context, (), batch.decodes)
        proposed_us = (batch.queries - 1) * self.draft(one).gpu_us
        return cost._replace(
            latency_us=cost.latency_us + proposed_us, gpu_us=cost.gpu_us + proposed_us
        )


#: A rate is kept where requests arrive for so many times as long as one takes: fewer would meet
#: only each other, not those of a server that has run for a while. And how many at most.
_STEADY = 4.0
_MOST_REQUESTS = 50_000


def steady_point(server: Server, load: Load, rate: float, slo: Slo) -> LoadPoint:
    """The load at that rate, with as many requests as it takes for the server to be busy with them
    as it would be in the long run."""
    while True:
        point = server.at_rate(load, rate, slo)
        wanted = min(_MOST_REQUESTS, math.ceil(_STEADY * rate * point.figures.e2e_s.p50))
        if not point.is_good(slo) or wanted <= load.num_requests:
            return point
        load = replace(load, num_requests=wanted)


#: Rates between which the highest is looked for, and how close it is found.
_LEAST_RATE, _MOST_RATE = 2.0**-7, 2.0**13
_PRECISION = 0.02


def highest_rate(server: Server, load: Load, slo: Slo) -> LoadPoint | None:
    """The highest rate at which enough requests keep the limits and the server keeps up; None where
    there is none."""
    good: LoadPoint | None = None
    low, high = 0.0, 0.0
    for point in _doubling(server, load, slo):
        assert point.rate is not None
        if not point.is_good(slo):
            high = point.rate
            break
        good, low = point, point.rate
    if good is None:
        return None
    while high and high - low > _PRECISION * high:
        point = steady_point(server, load, (low + high) / 2, slo)
        assert point.rate is not None
        if point.is_good(slo):
            good, low = point, point.rate
        else:
            high = point.rate
    rate = float(f"{low:.3g}")
    return good if rate == low else steady_point(server, load, rate, slo)


def _doubling(server: Server, load: Load, slo: Slo) -> Iterator[LoadPoint]:
    """Twice the rate each time, from one at which hardly two requests meet."""
    rate = 1.0
    point = steady_point(server, load, rate, slo)
    while not point.is_good(slo) and rate > _LEAST_RATE:
        rate /= 4
        point = steady_point(server, load, rate, slo)
    while rate <= _MOST_RATE:
        yield point
        rate *= 2
        point = steady_point(server, load, rate, slo)

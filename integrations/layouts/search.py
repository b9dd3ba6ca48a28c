"""The search: every layout that fits by arithmetic, priced from records of one block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neusight.integrations.layouts.block import BlockOf, BlockRecord, recorded_block
from neusight.integrations.layouts.layout import Layout, ModelShape, StepLoad, layouts_of
from neusight.integrations.layouts.pricing import (
    LayoutPrice,
    LayoutPricer,
    least_bytes,
    needed_bytes,
)
from neusight.predictors.errors import NeusightError
from neusight.predictors.gpu import GPU
from neusight.predictors.predictor import Predictor


@dataclass(frozen=True)
class SearchRequest:
    """What is looked for: a model (`source` as `--model` says it) on GPUs, in numbers of ranks."""

    source: str
    shape: ModelShape
    work: StepLoad
    gpus: tuple[GPU, ...]
    world_sizes: tuple[int, ...]
    predictor: Predictor
    gpus_per_node: int
    storage_gbps: float
    jobs: int
    loaded_tokens_per_s: float = math.inf
    float8: bool = False


@dataclass(frozen=True)
class Found:
    """The layouts that fit, fastest first, after those that were run whole; how many were looked at
    and how many of them need more memory than there is; and what failed, by title."""

    prices: tuple[LayoutPrice, ...]
    num_layouts: int
    num_too_large: int
    least_needed_bytes: float
    problems: tuple[str, ...] = ()


#: Work on many items at once: (position, result) of each as it ends.
Spread = Callable[..., Iterator[tuple[int, Any]]]

#: The step of a layout by the script that trains so, run whole: µs, or why there is none.
RunWhole = Callable[[LayoutPrice], "float | str"]

#: The best that are run whole, where their scripts call few blocks a step: five a second of CPU.
_RUN_WHOLE = 3
_MOST_BLOCK_CALLS = 200
#: Micro-batches that such a run takes at least, so that both the first and later ones are in it.
_SHORT_MICRO_BATCHES = 2


def find_layouts(
    request: SearchRequest,
    spread: Spread,
    *,
    run_whole: RunWhole | None = None,
    report: Callable[[str], object] = lambda text: None,
) -> Found:
    """Looks at all layouts, and runs the best few whole. `spread` does the same work on many items
    at once; `report` is called with what each record came to."""
    layouts = _layouts(request)
    records: dict[BlockOf, BlockRecord] = {}
    problems: dict[str, None] = {}
    record = partial(_record, request, spread, records, problems, report)
    offloaded = [replace(one, offload=True) for one in layouts if one.pipeline == 1]
    pairs = list(itertools.product(request.gpus, [*layouts, *offloaded]))
    pairs = [(gpu, one) for gpu, one in pairs if _fits(least_bytes(one, request.shape), gpu)]
    record({_block_of(gpu, replace(layout, micro_batch=1)) for gpu, layout in pairs})
    needed = _needed(request, pairs, records)
    fits = {(gpu.name, one) for gpu, one in pairs if _fits(needed.get((gpu.name, one)), gpu)}
    fitting = [
        (gpu, one)
        for gpu, one in pairs
        if (gpu.name, one) in fits
        and not (one.offload and (gpu.name, replace(one, offload=False)) in fits)
    ]
    record({_block_of(gpu, layout) for gpu, layout in fitting})
    pricers = _pricers(request)
    prices = sorted(_priced(pricers, fitting, records), key=_order)
    if run_whole is not None:
        price = partial(_like, pricers, records)
        prices = with_runs(request, spread, run_whole, price, prices, problems, report)
    count = len(layouts) * len(request.gpus)
    unknown = {(gpu.name, replace(one, offload=False)) for gpu, one in pairs
               if (gpu.name, one) not in needed}  # fmt: skip
    return Found(
        tuple(prices),
        num_layouts=count,
        num_too_large=count - len(fitting) - len(unknown),
        least_needed_bytes=min(needed.values(), default=0.0),
        problems=tuple(problems),
    )


def _fits(needed: float | None, gpu: GPU) -> bool:
    return needed is not None and needed <= gpu.memory_bytes


def _block_of(gpu: GPU, layout: Layout) -> BlockOf:
    shared = layout.tensor, layout.context, layout.expert
    return BlockOf(gpu.name, layout.micro_batch, *shared, layout.float8)


def _needed(
    request: SearchRequest,
    pairs: Sequence[tuple[GPU, Layout]],
    records: Mapping[BlockOf, BlockRecord],
) -> dict[tuple[str, Layout], float]:
    """What a rank of each layout needs, by the record of one sequence."""
    found = {}
    for gpu, layout in pairs:
        record = records.get(_block_of(gpu, replace(layout, micro_batch=1)))
        if record is not None:
            found[gpu.name, layout] = needed_bytes(layout, request.shape, record)
    return found


def _layouts(request: SearchRequest) -> list[Layout]:
    return [
        layout
        for world_size in request.world_sizes
        for layout in layouts_of(
            request.shape,
            request.work,
            world_size=world_size,
            gpus_per_node=request.gpus_per_node,
            float8=request.float8,
        )
    ]


def _record(
    request: SearchRequest,
    spread: Spread,
    records: dict[BlockOf, BlockRecord],
    problems: dict[str, None],
    report: Callable[[str], object],
    keys: Set[BlockOf],
) -> None:
    """Records the blocks that are not there yet."""
    wanted = sorted(keys - set(records))
    for position, found in spread(partial(_recorded, request), wanted, at_once=request.jobs):
        title = wanted[position].title
        if isinstance(found, BlockRecord):
            records[wanted[position]] = found
            report(f"recorded {title}")
        else:
            why = getattr(found, "failure", found)
            problems[f"{title}: {why}"] = None
            report(f"failed: {title}: {why}")


def _recorded(request: SearchRequest, wanted: BlockOf) -> BlockRecord | str:
    sequence, per_node = request.work.sequence, request.gpus_per_node
    try:
        return recorded_block(request.source, wanted, sequence=sequence, gpus_per_node=per_node)
    except NeusightError as error:
        return str(error).strip().partition("\n")[0]
    except ImportError as error:
        return f"needs {error.name}, which is not installed"
    except Exception as error:  # the model's own code
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _pricers(request: SearchRequest) -> dict[str, LayoutPricer]:
    return {
        gpu.name: LayoutPricer(
            request.shape,
            request.work,
            gpu,
            partial(_estimates, request.predictor, gpu),
            gpus_per_node=request.gpus_per_node,
            storage_gbps=request.storage_gbps,
            loaded_tokens_per_s=request.loaded_tokens_per_s,
        )
        for gpu in request.gpus
    }


def _priced(
    pricers: Mapping[str, LayoutPricer],
    fitting: Sequence[tuple[GPU, Layout]],
    records: Mapping[BlockOf, BlockRecord],
) -> Iterator[LayoutPrice]:
    for gpu, layout in fitting:
        record = records.get(_block_of(gpu, layout))
        if record is not None:
            yield pricers[gpu.name].price(layout, record)


# -- the best few, whole


def with_runs(
    request: SearchRequest,
    spread: Spread,
    run_whole: RunWhole,
    price: Callable[[LayoutPrice, Layout], LayoutPrice],
    prices: list[LayoutPrice],
    problems: dict[str, None],
    report: Callable[[str], object],
) -> list[LayoutPrice]:
    """The prices, of which the best few are as their scripts run whole, in the order of that.

    A run takes a few micro-batches."""
    asked = [one for one in prices[:_RUN_WHOLE] if _is_cheap(one.layout, request.shape)]
    short = [price(one, _shortened(one.layout)) for one in asked]
    corrected: dict[LayoutPrice, LayoutPrice] = {}
    for position, ran in spread(run_whole, short, at_once=request.jobs):
        one, few = asked[position], short[position]
        if isinstance(ran, float):
            corrected[one] = one.corrected(1.0 + _longer_us(one, few, ran) / one.busy_us)
            report(f"ran {few.layout.title} whole: {ran / few.busy_us - 1.0:+.1%}")
        else:
            why = getattr(ran, "failure", ran)
            problems[f"{one.layout.title} was not run whole: {why}"] = None
    others = [one for one in prices if one not in corrected]
    return [*sorted(corrected.values(), key=_order), *others]


def _longer_us(price: LayoutPrice, few: LayoutPrice, ran_us: float) -> float:
    """By how much a step is longer than its price, where one of a few micro-batches ran that long.

    Each adds the same, but in a pipeline, where the difference is of its beginning and end: of two
    ranks with four stages each 25, 26 and 19 ms with 2, 4 and 8 micro-batches of 140 ms."""
    repeats = 1.0 if price.layout.pipeline > 1 else price.busy_us / few.busy_us
    return repeats * (ran_us - few.busy_us)


def _is_cheap(layout: Layout, shape: ModelShape) -> bool:
    """Whether its script calls few blocks. What an optimizer takes on a host, no run shows."""
    calls = shape.num_blocks * _shortened(layout).num_micro_batches
    return not layout.offload and calls <= _MOST_BLOCK_CALLS


def _like(
    pricers: Mapping[str, LayoutPricer],
    records: Mapping[BlockOf, BlockRecord],
    found: LayoutPrice,
    layout: Layout,
) -> LayoutPrice:
    """Another layout on the same GPU, whose block is the same."""
    pricer = pricers[found.gpu]
    return pricer.price(layout, records[_block_of(pricer.gpu, layout)])


def _shortened(layout: Layout) -> Layout:
    """With as few micro-batches as show how it goes on."""
    least = max(layout.least_micro_batches, _SHORT_MICRO_BATCHES)
    return replace(layout, num_micro_batches=min(layout.num_micro_batches, least))


def _estimates(predictor: Predictor, gpu: GPU, kernels: list[Any]) -> list[Any]:
    return predictor.predict(kernels, gpu)


def _order(price: LayoutPrice) -> tuple[Any, ...]:
    return price.step_us, price.memory_bytes, price.gpu, price.layout


def frontier(
    prices: Sequence[LayoutPrice], cost_of: Callable[[LayoutPrice], float]
) -> list[LayoutPrice]:
    """Of the fastest layout of each GPU and number of ranks those that none beats in time and
    cost, fastest first."""
    fastest: dict[tuple[str, int], LayoutPrice] = {}
    for price in prices:
        fastest.setdefault((price.gpu, price.layout.world_size), price)
    kept: list[LayoutPrice] = []
    for price in sorted(fastest.values(), key=_order):
        if all(cost_of(price) < cost_of(other) for other in kept):
            kept.append(price)
    return kept

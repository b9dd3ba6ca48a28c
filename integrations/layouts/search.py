"""The search: every layout that fits by arithmetic, priced from records of one block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from neusight.integrations.layouts.block import BlockRecord, recorded_block
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

__all__ = ["Found", "SearchRequest", "find_layouts", "frontier"]


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


@dataclass(frozen=True)
class Found:
    """The layouts that fit, fastest first; how many were looked at and how many of them need more
    memory than there is; and what failed, by title."""

    prices: tuple[LayoutPrice, ...]
    num_layouts: int
    num_too_large: int
    least_needed_bytes: float
    problems: tuple[str, ...] = ()


#: Work on many items at once: (position, result) of each as it ends.
Spread = Callable[..., Iterator[tuple[int, Any]]]

#: A record that is wanted: GPU, ranks that split a block, micro-batch.
_Wanted = tuple[str, int, int]


def find_layouts(
    request: SearchRequest, spread: Spread, *, report: Callable[[str], object] = lambda text: None
) -> Found:
    """Looks at all layouts. `spread` does the same work on many items at once; `report` is called
    with what each record came to."""
    layouts = _layouts(request)
    records: dict[_Wanted, BlockRecord] = {}
    problems: dict[str, None] = {}
    record = partial(_record, request, spread, records, problems, report)
    pairs = list(itertools.product(request.gpus, layouts))
    pairs = [(gpu, one) for gpu, one in pairs if _fits(least_bytes(one, request.shape), gpu)]
    record({(gpu.name, layout.tensor, 1) for gpu, layout in pairs})
    needed = _needed(request, pairs, records)
    fitting = [(gpu, one) for gpu, one in pairs if _fits(needed.get((gpu.name, one)), gpu)]
    record({(gpu.name, layout.tensor, layout.micro_batch) for gpu, layout in fitting})
    count = len(layouts) * len(request.gpus)
    return Found(
        tuple(sorted(_priced(request, fitting, records), key=_order)),
        num_layouts=count,
        num_too_large=count - len(fitting),
        least_needed_bytes=min(needed.values(), default=0.0),
        problems=tuple(problems),
    )


def _fits(needed: float | None, gpu: GPU) -> bool:
    return needed is not None and needed <= gpu.memory_bytes


def _needed(
    request: SearchRequest,
    pairs: Sequence[tuple[GPU, Layout]],
    records: Mapping[_Wanted, BlockRecord],
) -> dict[tuple[str, Layout], float]:
    """What a rank of each layout needs, by the record of one sequence."""
    return {
        (gpu.name, layout): needed_bytes(layout, request.shape, records[gpu.name, layout.tensor, 1])
        for gpu, layout in pairs
        if (gpu.name, layout.tensor, 1) in records
    }


def _layouts(request: SearchRequest) -> list[Layout]:
    return [
        layout
        for world_size in request.world_sizes
        for layout in layouts_of(
            request.shape,
            request.work,
            world_size=world_size,
            gpus_per_node=request.gpus_per_node,
        )
    ]


def _record(
    request: SearchRequest,
    spread: Spread,
    records: dict[_Wanted, BlockRecord],
    problems: dict[str, None],
    report: Callable[[str], object],
    keys: Set[_Wanted],
) -> None:
    """Records the blocks that are not there yet."""
    wanted = sorted(keys - set(records))
    work = partial(_recorded, request.source, request.work.sequence)
    for position, found in spread(work, wanted, at_once=request.jobs):
        gpu, tensor, micro_batch = wanted[position]
        title = f"a block on {gpu}, tensor {tensor}, {micro_batch} sequences"
        if isinstance(found, BlockRecord):
            records[wanted[position]] = found
            report(f"recorded {title}")
        else:
            why = getattr(found, "failure", found)
            problems[f"{title}: {why}"] = None
            report(f"failed: {title}: {why}")


def _recorded(source: str, sequence: int, wanted: _Wanted) -> BlockRecord | str:
    gpu, tensor, micro_batch = wanted
    try:
        return recorded_block(
            source, gpu, tensor=tensor, micro_batch=micro_batch, sequence=sequence
        )
    except NeusightError as error:
        return str(error).strip().partition("\n")[0]
    except Exception as error:  # the model's own code
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _priced(
    request: SearchRequest,
    fitting: Sequence[tuple[GPU, Layout]],
    records: Mapping[_Wanted, BlockRecord],
) -> Iterator[LayoutPrice]:
    pricers: dict[str, LayoutPricer] = {}
    for gpu, layout in fitting:
        record = records.get((gpu.name, layout.tensor, layout.micro_batch))
        if record is None:
            continue
        if gpu.name not in pricers:
            pricers[gpu.name] = LayoutPricer(
                request.shape,
                request.work,
                gpu,
                partial(_estimates, request.predictor, gpu),
                gpus_per_node=request.gpus_per_node,
                storage_gbps=request.storage_gbps,
            )
        yield pricers[gpu.name].price(layout, record)


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

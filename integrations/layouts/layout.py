"""A layout: how ranks share a model's training, and all layouts that divide it evenly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from neusight.predictors.errors import OptionError

#: Micro-batches that are tried, in sequences, and numbers of stages on a rank of a pipeline.
_MICRO_BATCHES = (1, 2, 4, 8)
_STAGES_A_RANK = (1, 2, 4)

#: Stages beyond this leave a pipeline idle for longer than it works.
_MOST_STAGES = 32

#: Tokens of a sequence that a rank has at least where several share it: attention over fewer is
#: shorter than the exchange of keys and values beside it. A prior.
_LEAST_PART = 2048

#: Ranks that share a layer's experts at most: those of DeepSeek-V3's training.
_MOST_EXPERT_RANKS = 64


@dataclass(frozen=True)
class ModelShape:
    """What divides a model: `num_blocks` equal blocks, `heads` and `kv_heads` (0: unknown, then it
    is not divided by them), and its parameters in a block and outside of all blocks.
    `has_stages`: its blocks may lie on several ranks. Of a block's parameters `expert_parameters`
    are those of `num_experts` experts (0: it has none)."""

    name: str
    num_blocks: int
    heads: int
    kv_heads: int
    block_parameters: int
    edge_parameters: int
    has_stages: bool
    num_experts: int = 0
    expert_parameters: int = 0

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.num_blocks * self.block_parameters + self.edge_parameters


@dataclass(frozen=True)
class StepLoad:
    """What a step takes: `tokens` of all ranks, in sequences of `sequence`."""

    tokens: int
    sequence: int

    def __post_init__(self) -> None:
        if self.sequence < 1 or self.tokens < self.sequence:
            raise OptionError(
                f"--tokens is {self.tokens:,}; a step takes at least one sequence of "
                f"{self.sequence:,} (--sequence)"
            )
        if self.tokens % self.sequence:
            raise OptionError(
                f"--tokens is {self.tokens:,}, which no whole number of sequences of "
                f"{self.sequence:,} makes; say another, or another --sequence"
            )

    @property
    def num_sequences(self) -> int:
        """Sequences of a step, all ranks."""
        return self.tokens // self.sequence


@dataclass(frozen=True, order=True)
class Layout:
    """Ranks by kind of parallelism, and what each works on at once.

    `tensor` ranks split each layer, `pipeline` hold some of the blocks each, in `stages_a_rank`
    pieces, `shard` share the values of a copy (FSDP2), `expert` of which hold different experts,
    and `replicate` hold a copy each; `context` ranks share a sequence, and the copy too.
    `zero_bubble` is the schedule ZBV, `checkpoint` computes activations again, `reshard` gives
    gathered parameters up after each block, `offload` keeps parameters and the optimizer on the
    host, `float8` is the precision of the blocks' products.
    """

    tensor: int = 1
    pipeline: int = 1
    stages_a_rank: int = 1
    shard: int = 1
    replicate: int = 1
    micro_batch: int = 1
    num_micro_batches: int = 1
    checkpoint: bool = False
    reshard: bool = True
    context: int = 1
    expert: int = 1
    zero_bubble: bool = False
    offload: bool = False
    float8: bool = False

    @property
    def sharers(self) -> int:
        """Ranks that share the values of a copy."""
        return self.shard * self.context

    @property
    def least_micro_batches(self) -> int:
        """As many as its schedule needs."""
        return self.pipeline * (2 if self.zero_bubble else 1)

    @property
    def world_size(self) -> int:
        """All ranks.

        >>> Layout(tensor=8, shard=4, replicate=2).world_size
        64
        """
        return self.tensor * self.pipeline * self.sharers * self.replicate

    @property
    def title(self) -> str:
        """In words.

        >>> Layout(tensor=8, shard=8, micro_batch=2, num_micro_batches=4, checkpoint=True).title
        'tensor 8, shard 8, 4 x 2 sequences, checkpoints'
        """
        parts = [
            f"{name} {count}"
            for name, count in (
                ("tensor", self.tensor),
                ("context", self.context),
                ("pipeline", self.pipeline),
                ("shard", self.shard),
                ("expert", self.expert),
                ("replicate", self.replicate),
            )
            if count > 1
        ]
        if self.stages_a_rank > 1:
            parts.append(f"{self.stages_a_rank} stages a rank")
        parts.append(f"{self.num_micro_batches} x {self.micro_batch} sequences")
        marks = (
            ("zero bubble", self.zero_bubble),
            ("checkpoints", self.checkpoint),
            ("parameters kept", not self.reshard),
            ("offload", self.offload),
            ("float8", self.float8),
        )
        return ", ".join([*parts, *(name for name, is_so in marks if is_so)])

    def settings(self, sequence: int) -> dict[str, Any]:
        """What the script that trains so is filled in with."""
        return {**asdict(self), "sequence": sequence}


def layouts_of(
    shape: ModelShape, work: StepLoad, *, world_size: int, gpus_per_node: int, float8: bool = False
) -> list[Layout]:
    """All layouts that give every rank an equal share of the model and of the step's sequences;
    with `float8` each in both precisions.

    Tensor parallelism stays inside a host, and splits no experts. Context parallelism shares one
    sequence at a time. OptionError where there is none.
    """
    found = [
        layout
        for tensor in _divisors(min(gpus_per_node, world_size), of=world_size)
        if _splits(shape, tensor) and not work.sequence % tensor
        for context in _divisors(max(1, work.sequence // _LEAST_PART), of=world_size // tensor)
        if context == 1 or (shape.has_stages and not work.sequence % (2 * context * tensor))
        for pipeline in _divisors(_MOST_STAGES, of=world_size // (tensor * context))
        if pipeline == 1 or (shape.has_stages and pipeline <= shape.num_blocks)
        for layout in _of_copies(
            shape,
            work,
            Layout(tensor, pipeline, context=context),
            world_size // (tensor * context * pipeline),
            max(1, gpus_per_node // (tensor * context)),
        )
    ]
    if not found:
        raise OptionError(
            f"{world_size} ranks cannot share {work.num_sequences:,} sequences of a step of "
            f"{shape.name} evenly ({shape.num_blocks} blocks, {shape.heads} heads, "
            f"{shape.kv_heads} of keys): say another --tokens or --world-size, as powers of two"
        )
    return [*found, *(replace(layout, float8=True) for layout in found if float8)]


def _splits(shape: ModelShape, tensor: int) -> bool:
    if tensor == 1:
        return True
    is_even = bool(shape.heads) and not shape.heads % tensor and not shape.kv_heads % tensor
    return is_even and not shape.num_experts


def _of_copies(
    shape: ModelShape, work: StepLoad, ranks: Layout, copies: int, in_host: int
) -> Iterator[Layout]:
    """Those of so many copies of the model, whose values a host's copies share, or all."""
    own, rest = divmod(work.num_sequences, copies)
    shards = [shard for shard in sorted({1, copies, min(copies, in_host)}) if not copies % shard]
    batches = _MICRO_BATCHES if ranks.context == 1 else (1,)
    for shard, micro_batch in itertools.product(shards if not rest else (), batches):
        times = own // micro_batch
        if own % micro_batch or times < ranks.pipeline:
            continue
        for expert, (per_rank, zero_bubble) in itertools.product(
            _expert_ranks(shape, ranks, shard, in_host), _schedules(shape, ranks.pipeline, times)
        ):
            is_shared = shard * ranks.context > 1
            for checkpoint, reshard in itertools.product(
                (False,) if zero_bubble else (False, True), (True, False) if is_shared else (False,)
            ):
                yield replace(
                    ranks, stages_a_rank=per_rank, shard=shard, replicate=copies // shard,
                    micro_batch=micro_batch, num_micro_batches=times, checkpoint=checkpoint,
                    reshard=reshard, expert=expert, zero_bubble=zero_bubble,
                )  # fmt: skip


def _expert_ranks(shape: ModelShape, ranks: Layout, shard: int, in_host: int) -> list[int]:
    """Ranks that may hold different experts, of those that share a copy: one, a host's, or as many
    as there are."""
    if not shape.num_experts or ranks.context > 1:
        return [1]
    even = [count for count in _divisors(min(shard, _MOST_EXPERT_RANKS), of=shard)
            if not shape.num_experts % count]  # fmt: skip
    return sorted({1, max(count for count in even if count <= in_host), max(even)})


def _schedules(shape: ModelShape, pipeline: int, times: int) -> list[tuple[int, bool]]:
    """Stages that a rank may hold, and whether in the order ZBV, whose stages are two. Its second
    pass over a checkpoint would compute it once more, so it has none."""
    if pipeline == 1:
        return [(1, False)]
    even = [count for count in _STAGES_A_RANK if not shape.num_blocks % (pipeline * count)]
    found = [(count, False) for count in even if count == 1 or not times % pipeline]
    return [*found, (2, True)] if 2 in even and times >= 2 * pipeline else found


def _divisors(most: int, *, of: int) -> list[int]:
    return [number for number in range(1, most + 1) if of % number == 0]

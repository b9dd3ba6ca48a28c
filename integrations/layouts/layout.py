"""A layout: how ranks share a model's training, and all layouts that divide it evenly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from neusight.predictors.errors import OptionError

__all__ = ["Layout", "ModelShape", "StepLoad", "layouts_of"]

#: Micro-batches that are tried, sequences, and stages that a rank of a pipeline holds.
_MICRO_BATCHES = (1, 2, 4, 8)
_STAGES_A_RANK = (1, 2, 4)

#: Stages beyond this leave a pipeline idle for longer than it works.
_MOST_STAGES = 32


@dataclass(frozen=True)
class ModelShape:
    """What divides a model: `num_blocks` equal blocks, `heads` and `kv_heads` (0: unknown, then it
    is not divided by them), and its parameters in a block and outside of all blocks.
    `has_stages`: its blocks may lie on several ranks."""

    name: str
    num_blocks: int
    heads: int
    kv_heads: int
    block_parameters: int
    edge_parameters: int
    has_stages: bool

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
    pieces, `shard` share the values of a copy (FSDP2) and `replicate` hold a copy each.
    `checkpoint` computes activations again, `reshard` gives gathered parameters up after each
    block.
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

    @property
    def world_size(self) -> int:
        """All ranks.

        >>> Layout(tensor=8, shard=4, replicate=2).world_size
        64
        """
        return self.tensor * self.pipeline * self.shard * self.replicate

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
                ("pipeline", self.pipeline),
                ("shard", self.shard),
                ("replicate", self.replicate),
            )
            if count > 1
        ]
        if self.stages_a_rank > 1:
            parts.append(f"{self.stages_a_rank} stages a rank")
        parts.append(f"{self.num_micro_batches} x {self.micro_batch} sequences")
        if self.checkpoint:
            parts.append("checkpoints")
        if not self.reshard:
            parts.append("parameters kept")
        return ", ".join(parts)

    def settings(self, sequence: int) -> dict[str, Any]:
        """What the script that trains so is filled in with."""
        return {**asdict(self), "sequence": sequence}


def layouts_of(
    shape: ModelShape, work: StepLoad, *, world_size: int, gpus_per_node: int
) -> list[Layout]:
    """All layouts that give every rank an equal share of the model and of the step's sequences.

    Tensor parallelism stays inside a host. OptionError where there is none.
    """
    found = [
        layout
        for tensor in _divisors(min(gpus_per_node, world_size), of=world_size)
        if _splits(shape, tensor) and not work.sequence % tensor
        for pipeline in _divisors(_MOST_STAGES, of=world_size // tensor)
        if pipeline == 1 or (shape.has_stages and pipeline <= shape.num_blocks)
        for layout in _of_copies(
            shape,
            work,
            tensor,
            pipeline,
            world_size // (tensor * pipeline),
            max(1, gpus_per_node // tensor),
        )
    ]
    if not found:
        raise OptionError(
            f"{world_size} ranks cannot share {work.num_sequences:,} sequences of a step of "
            f"{shape.name} evenly ({shape.num_blocks} blocks, {shape.heads} heads, "
            f"{shape.kv_heads} of keys): say another --tokens or --world-size, as powers of two"
        )
    return found


def _splits(shape: ModelShape, tensor: int) -> bool:
    if tensor == 1:
        return True
    return bool(shape.heads) and not shape.heads % tensor and not shape.kv_heads % tensor


def _of_copies(
    shape: ModelShape, work: StepLoad, tensor: int, pipeline: int, copies: int, in_host: int
) -> Iterator[Layout]:
    """Those of so many copies of the model, whose values a host's copies share, or all."""
    own, rest = divmod(work.num_sequences, copies)
    shards = [shard for shard in sorted({1, copies, min(copies, in_host)}) if not copies % shard]
    for shard, micro_batch in itertools.product(shards if not rest else (), _MICRO_BATCHES):
        times = own // micro_batch
        if own % micro_batch or times < pipeline:
            continue
        for per_rank in _STAGES_A_RANK if pipeline > 1 else (1,):
            if shape.num_blocks % (pipeline * per_rank) or (per_rank > 1 and times % pipeline):
                continue
            ways = itertools.product((False, True), (True, False) if shard > 1 else (False,))
            for checkpoint, reshard in ways:
                yield Layout(
                    tensor, pipeline, per_rank, shard, copies // shard,
                    micro_batch, times, checkpoint, reshard,
                )  # fmt: skip


def _divisors(most: int, *, of: int) -> list[int]:
    return [number for number in range(1, most + 1) if of % number == 0]

"""One block of a model and its neighbours, recorded: their kernels, and the bytes they keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, Literal, NamedTuple

from neusight.integrations.layouts.layout import ModelShape
from neusight.predictors.errors import NeusightError, OptionError
from neusight.predictors.kernel import Kernel
from neusight.timeline.steady import kernels_of

#: Where a kernel belongs: in a block, before the first, or after the last one; or in what is
#: computed of a block again, where it is checkpointed.
Part = Literal["block", "first", "last", "again"]

#: Fields of configurations that say how many heads a model has.
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")


class BlockOf(NamedTuple):
    """What a rank's work on a block depends on: its GPU, the ranks that share the block, and the
    sequences at once."""

    gpu: str
    micro_batch: int
    tensor: int = 1
    context: int = 1
    expert: int = 1
    float8: bool = False

    @property
    def ranks(self) -> int:
        """That share the block."""
        return self.tensor * self.context * self.expert

    @property
    def title(self) -> str:
        """In words.

        >>> BlockOf("H100", 2, tensor=4).title
        'a block on H100, tensor 4, 2 sequences'
        """
        shared = (f"{name} {getattr(self, name)}" for name in ("context", "expert")
                  if getattr(self, name) > 1)  # fmt: skip
        parts = [f"a block on {self.gpu}", f"tensor {self.tensor}", *shared,
                 f"{self.micro_batch} sequences"]  # fmt: skip
        return ", ".join([*parts, "float8"] if self.float8 else parts)


@dataclass(frozen=True)
class BlockRecord:
    """What one rank of those that share a block does for its part of `micro_batch` sequences: its
    kernels in order, with where they belong; bytes that a block keeps for its backward pass, those
    of its input, and those that the others keep or need at most; the host's time for a block
    forward and backward, and for the others."""

    micro_batch: int
    kernels: tuple[tuple[Part, bool, Kernel], ...]
    kept_bytes: int
    input_bytes: int
    edge_bytes: int
    host_us: tuple[float, float]


def model_shape(source: str) -> ModelShape:
    """What divides the model; OptionError where there is none, or it has no blocks."""
    from neusight.integrations.layouts import training

    model = _built(source)
    try:
        name = training.blocks_name(model)
        blocks: Any = model.get_submodule(name)
        has_stages = training.is_decoder(model)
    except SystemExit as error:
        raise OptionError(f"{source}: {error}") from error
    heads, kv_heads = _heads_of(getattr(model, "config", None))
    experts = training.experts_of(blocks[-1])
    block = sum(weight.numel() for weight in blocks[0].parameters())
    total = sum(weight.numel() for weight in model.parameters())
    return ModelShape(
        name=type(model).__name__,
        num_blocks=len(blocks),
        heads=heads,
        kv_heads=kv_heads,
        block_parameters=block,
        edge_parameters=total - block * len(blocks),
        has_stages=has_stages,
        num_experts=max((int(found.num_experts) for found in experts.values()), default=0),
        expert_parameters=sum(
            weight.numel() for found in experts.values() for weight in found.parameters()
        ),
    )


def _heads_of(config: Any) -> tuple[int, int]:
    """Heads of queries and of keys, as a configuration says; 0 where it does not."""
    heads = next((getattr(config, word) for word in _HEADS if hasattr(config, word)), 0) or 0
    kv_heads = next((getattr(config, word) for word in _KV_HEADS if hasattr(config, word)), 0)
    return int(heads), int(kv_heads or heads)


def _built(source: str, *, num_blocks: int | None = None) -> Any:
    """The model without values, of that many blocks; OptionError for what makes none."""
    from neusight.integrations.layouts import training

    _require_file(source)
    try:
        model = training.build_model(source)
    except ImportError as error:
        raise OptionError(
            f"--model {source} needs transformers ({error}): pip install transformers, or give "
            "file.py:function of a function that returns the model"
        ) from error
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise OptionError(
            f"--model {source} makes no model: {type(error).__name__}: {first}"
        ) from error
    if num_blocks is not None:
        blocks: Any = model.get_submodule(training.blocks_name(model))
        del blocks[num_blocks:]
    return model


def _require_file(source: str) -> None:
    path = Path(source if source.endswith(".json") else source.rpartition(":")[0] or source)
    if not path.is_file() or (not source.endswith(".json") and ":" not in source):
        raise OptionError(
            f"--model is {source!r}; it must be a config.json of transformers, or file.py:function "
            "of a function that returns the model, and the file must be there"
        )


def ranks_of_a_node(ranks: int, gpus_per_node: int) -> int:
    """How many of a block's ranks share a node: as many on each, as torchrun starts them.

    >>> ranks_of_a_node(4, 8), ranks_of_a_node(12, 8)
    (4, 4)
    """
    return ranks if ranks <= gpus_per_node else gcd(ranks, gpus_per_node)


def recorded_block(source: str, of: BlockOf, *, sequence: int, gpus_per_node: int) -> BlockRecord:
    """Records two steps of the model with one block, as one of the ranks that share it, and two
    with the block checkpointed, of which torch computes again what the backward pass needs;
    NeusightError where it does not run."""
    import torch
    import torch.distributed as dist

    import neusight
    from neusight.integrations.layouts import training

    kept, ranks = _KeptBytes(), of.ranks
    with neusight.forecast_on(
        of.gpu,
        world_size=ranks if ranks > 1 else None,
        gpus_per_node=ranks_of_a_node(ranks, gpus_per_node) if ranks > 1 else None,
        with_modules=True,
    ) as forecast:
        stage, vocabulary, mesh = _stage(source, of, sequence)
        name = training.blocks_name(stage)
        kept.watch(stage.get_submodule(name)[0])
        for number in range(4):
            if number == 2:
                kept.end()
                training.recompute(stage)
            tokens = torch.randint(vocabulary, (of.micro_batch, sequence), device="cuda")
            _take_step(stage, tokens, mesh["context"] if of.context > 1 else None)
            forecast.step()
        own_bytes = sum(
            weight.to_local().nbytes if hasattr(weight, "to_local") else weight.nbytes
            for weight in stage.parameters()
        )
        if ranks > 1:
            dist.destroy_process_group()
    return _read(forecast, f".{name}.0", of.micro_batch, kept, own_bytes)


def _take_step(stage: Any, tokens: Any, sharers: Any) -> None:
    """Forward and backward; `sharers` of the sequence, if there are any."""
    import torch
    from torch.distributed.tensor.parallel import loss_parallel

    from neusight.integrations.layouts import training

    sharing = training.share_sequence(sharers, [stage], [tokens]) if sharers else nullcontext()
    with sharing, loss_parallel():
        torch.autograd.backward(training.loss_of(stage(tokens), tokens))
    stage.zero_grad()


def _stage(source: str, of: BlockOf, sequence: int) -> tuple[Any, int, Any]:
    """The model with one block, in bf16, split by the ranks that share it; its vocabulary, and the
    ranks (None: one)."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from neusight.integrations.layouts import training

    model = _built(source, num_blocks=1)
    vocabulary = training.vocabulary_of(model)
    stage: Any = (
        training.DecoderStage(model, range(1))
        if training.is_decoder(model)
        else training.Whole(model)
    )
    stage.to(torch.bfloat16)
    if of.float8:
        training.use_float8(stage)
    mesh = None
    if of.ranks > 1:
        dist.init_process_group("nccl")
        names = ("expert", "context", "tensor")
        sizes = tuple(getattr(of, name) for name in names)
        mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names)
        if of.tensor > 1:
            training.split_layers(stage, mesh["tensor"])
        if of.expert > 1:
            training.split_experts(stage, mesh["expert"])
    training.initialize(stage)
    if of.context > 1:
        stage.places = torch.arange(sequence, device="cuda")[None]
    return stage, vocabulary, mesh


def _read(
    forecast: Any, block: str, micro_batch: int, kept: _KeptBytes, own_bytes: int
) -> BlockRecord:
    if forecast.recording.options.get("failure"):
        raise NeusightError(f"the block failed: {forecast.recording.options['failure']}")
    _, step, _, checkpointed = (
        one
        for one in forecast.timeline.steps
        for _ in range(one.represents)
        if one.replay.step.kind == "train"
    )
    kernels: list[tuple[Part, bool, Kernel]] = []
    came_to_block = False
    ops: dict[bool, set[int]] = {True: set(), False: set()}
    for span in kernels_of(step, forecast.timeline):
        is_backward = span.call.phase == "backward"
        in_block = f"{span.call.module}.".find(f"{block}.") >= 0
        came_to_block = came_to_block or in_block
        part: Part = "block"
        if not in_block:
            is_first = not came_to_block if not is_backward else _is_embedding(span.call.module)
            part = "first" if is_first else "last"
        kernels.append((part, is_backward, span.kernel))
        ops[in_block].add(span.op)
    with_again = Counter(span.kernel for span in kernels_of(checkpointed, forecast.timeline))
    again = with_again - Counter(kernel for _, _, kernel in kernels)
    kernels += [("again", True, kernel) for kernel in again.elements()]
    share = len(ops[True]) / max(1, len(ops[True]) + len(ops[False]))
    host_us = step.host_ns / 1e3
    return BlockRecord(
        micro_batch=micro_batch,
        kernels=tuple(kernels),
        kept_bytes=kept.num_bytes,
        input_bytes=kept.input_bytes,
        edge_bytes=max(0, forecast.peak_memory_bytes - own_bytes - kept.num_bytes),
        host_us=(host_us * share, host_us * (1.0 - share)),
    )


def _is_embedding(module: str) -> bool:
    return "embed" in module.rpartition(".")[2] or "rotary" in module


class _KeptBytes:
    """The bytes that a block's forward keeps for its backward, parameters left out."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.input_bytes = 0

    def watch(self, block: Any) -> None:
        """Counts in every call of the block until `end`; the last one counts."""
        self._block, forward = block, block.forward

        def counted(*arguments: Any, **named: Any) -> Any:
            weights = {_storage(weight) for weight in block.parameters()}
            first = arguments[0] if arguments else named["hidden_states"]
            self.input_bytes = int(first.nbytes)
            with _keeping(weights) as kept:
                found = forward(*arguments, **named)
            self.num_bytes = sum(kept.values())
            return found

        block.forward = counted

    def end(self) -> None:
        """Counts no more."""
        del self._block.forward


def _storage(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.untyped_storage()._cdata)


@contextmanager
def _keeping(weights: set[int]) -> Iterator[dict[int, int]]:
    """The storages, with their bytes, that are kept for a backward pass while it is open."""
    import torch

    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        if storage._cdata not in weights and local.device.type == "cuda":
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept

"""Trains a language model in one layout over many GPUs: PyTorch's FSDP2, tensor, context and expert
parallelism and pipelining. `neusight plan --model` writes it with MODEL and LAYOUT filled in; run
it by torchrun.

The data are random tokens: put your own loader into `batches`, and your schedule of learning rates
beside the optimizer.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

#: A config.json of transformers, or "file.py:function" of a function that returns the model.
MODEL = "config.json"
#: Ranks by kind of parallelism (data = replicate x shard, of which `expert` share the experts), and
#: what a rank works on at once.
LAYOUT: dict[str, Any] = {
    "replicate": 1, "shard": 1, "expert": 1, "context": 1, "tensor": 1, "pipeline": 1,
    "stages_a_rank": 1, "zero_bubble": False, "micro_batch": 1, "num_micro_batches": 1,
    "checkpoint": False, "reshard": True, "offload": False, "float8": False, "sequence": 4096,
}  # fmt: skip
STEPS = 10
LEARNING_RATE = 1e-4


# -- the model -------------------------------------------------------------------------------------


def build_model(source: str) -> nn.Module:
    """The whole model, without values."""
    with torch.device("meta"):
        if not source.endswith(".json"):
            path, _, name = source.rpartition(":")
            spec = importlib.util.spec_from_file_location("model_to_train", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            made: nn.Module = getattr(module, name)()
            return made
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(source)
        config.use_cache = False
        make: Any = AutoModelForCausalLM.from_config
        found: nn.Module = make(config, attn_implementation="sdpa")
        return found


def blocks_name(model: nn.Module) -> str:
    """The name of the list that holds the blocks: the longest list of equal modules."""
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1
    }
    if not lists:
        raise SystemExit("the model has no list of blocks of one class")

    def size(name: str) -> int:
        return sum(weight.numel() for weight in lists[name].parameters())

    longest: str = max(lists, key=size)
    return longest


class DecoderStage(nn.Module):
    """Some layers of a decoder of transformers: the first takes token ids, the last gives
    logits. `sequence_ranks` share the sequence between layers."""

    places: Tensor | None

    def __init__(self, model: nn.Module, blocks: range) -> None:
        super().__init__()
        decoder: Any = model.get_submodule(blocks_name(model).rpartition(".")[0])
        last = len(decoder.layers)
        self.embed_tokens = decoder.embed_tokens if blocks.start == 0 else None
        self.rotary_emb = decoder.rotary_emb
        self.register_buffer("places", None, persistent=False)
        self.sequence_ranks = 1
        self.layers = nn.ModuleList(decoder.layers[number] for number in blocks)
        is_last = blocks.stop == last
        self.norm = decoder.norm if is_last else None
        self.lm_head = model.get_submodule("lm_head") if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        places = self.places
        if places is None:
            places = torch.arange(x.shape[1] * self.sequence_ranks, device=x.device)[None]
        angles = self.rotary_emb(x, places)
        for block in self.layers:
            found = block(x, position_embeddings=angles, position_ids=places, attention_mask=None)
            x = found[0] if isinstance(found, tuple) else found
        if self.norm is not None and self.lm_head is not None:
            x = self.lm_head(self.norm(x))
        return x


class Whole(nn.Module):
    """A model of your own, called with token ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.model(tokens)
        logits: Tensor = found.logits if hasattr(found, "logits") else found
        return logits


def is_decoder(model: nn.Module) -> bool:
    """Whether its layers can be divided among stages."""
    decoder = model.get_submodule(blocks_name(model).rpartition(".")[0])
    names = ("embed_tokens", "rotary_emb", "layers", "norm")
    return all(hasattr(decoder, name) for name in names) and hasattr(model, "lm_head")


# -- how the ranks share it ------------------------------------------------------------------------

#: Last words of the linear layers of a block whose inputs are split, not their outputs.
_ROWWISE = ("o_proj", "out_proj", "down_proj", "wo", "w2", "out", "down", "c_proj", "fc2", "dense")


def linear_layers(block: nn.Module) -> dict[str, str]:
    """ "rowwise" or "colwise" of each linear layer of a block, by name."""
    return {
        name: "rowwise" if name.rpartition(".")[2] in _ROWWISE else "colwise"
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear)
    }


def norms_of(block: nn.Module) -> list[str]:
    """The norms of a block that stand between its layers."""
    return [
        name for name, module in block.named_children() if "norm" in type(module).__name__.lower()
    ]


def split_layers(stage: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism: each block's layers by columns and then by rows. Between them the ranks
    of a decoder share the sequence, others hold it whole."""
    blocks: Any = stage.get_submodule(blocks_name(stage))
    between = Shard(1) if isinstance(stage, DecoderStage) else Replicate()
    for block in blocks:
        plan: dict[str, Any] = {}
        for name, how in linear_layers(block).items():
            rows = RowwiseParallel(output_layouts=between)
            plan[name] = rows if how == "rowwise" else ColwiseParallel()
            owner = name.rpartition(".")[0]
            if owner and owner not in plan:
                is_attention = hasattr(block.get_submodule(owner), "is_causal")
                plan[owner] = (
                    PrepareModuleInput(
                        input_kwarg_layouts={"hidden_states": between},
                        desired_input_kwarg_layouts={"hidden_states": Replicate()},
                    )
                    if is_attention
                    else PrepareModuleInput(
                        input_layouts=(between,), desired_input_layouts=(Replicate(),)
                    )
                )
        if isinstance(stage, DecoderStage):
            plan.update({name: SequenceParallel() for name in norms_of(block)})
        parallelize_module(block, mesh, plan)
    if isinstance(stage, DecoderStage):
        stage.sequence_ranks = mesh.size()
        rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        columns = ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        )
        edges = {"embed_tokens": rows, "norm": SequenceParallel(), "lm_head": columns}
        own = {name: how for name, how in edges.items() if getattr(stage, name) is not None}
        parallelize_module(stage, mesh, own)


def recompute(stage: nn.Module) -> None:
    """Keeps the inputs of each block alone, and computes it again in the backward pass."""
    blocks: Any = stage.get_submodule(blocks_name(stage))
    for block in blocks:
        forward = block.forward
        block.forward = lambda *a, _forward=forward, **k: checkpoint(
            _forward, *a, use_reentrant=False, **k
        )


def share_sequence(
    mesh: DeviceMesh, stages: list[nn.Module], tokens: list[Tensor]
) -> AbstractContextManager[None]:
    """While open, each rank of `mesh` has its part of every sequence of `tokens`, and attention
    passes keys and values round (context parallelism)."""
    buffers: list[Any] = [*tokens, *(stage.places for stage in stages)]
    shared: Any = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers))
    found: AbstractContextManager[None] = shared
    return found


def experts_of(module: nn.Module) -> dict[str, Any]:
    """The modules that hold experts as transformers does, each weight for all of them."""
    return {
        name: found
        for name, found in module.named_modules()
        if getattr(found, "num_experts", 0) and hasattr(found, "down_proj")
    }


def split_experts(stage: nn.Module, mesh: DeviceMesh) -> None:
    """Expert parallelism: each rank holds some of the experts, and tokens travel to them."""
    for module in experts_of(stage).values():
        forward, total = module.forward, module.num_experts
        module.num_experts //= mesh.size()
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight[: module.num_experts]))
        module.forward = partial(_exchanged, forward, mesh.get_group(), total)


def _exchanged(
    forward: Any, group: Any, total: int, hidden: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """What the experts make of the tokens, which are sent to the ranks that hold them and back."""
    ranks = dist.get_world_size(group)
    number, order = index.flatten().sort()
    sent = torch.bincount(number, minlength=total)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    out, own = (counts.view(ranks, -1).sum(1).tolist() for counts in (sent, received))
    rows = all_to_all_single_autograd(hidden[order // index.shape[1]], own, out, group)
    local = torch.arange(total // ranks, device=hidden.device).repeat(ranks)
    local = local.repeat_interleave(received, output_size=sum(own))[:, None]
    done = forward(rows, local, torch.ones_like(local, dtype=weights.dtype))
    back = all_to_all_single_autograd(done, out, own, group) * weights.flatten()[order, None]
    return torch.zeros_like(hidden).index_add_(0, order // index.shape[1], back.to(hidden.dtype))


def use_float8(stage: nn.Module) -> None:
    """The linear layers of the blocks multiply in float8, scaled by tensor (torchao)."""
    from torchao.float8 import convert_to_float8_training

    blocks: Any = stage.get_submodule(blocks_name(stage))
    for block in blocks:
        convert_to_float8_training(block)


def shard(stage: nn.Module, mesh: DeviceMesh, same: DeviceMesh | None) -> None:
    """FSDP2: fp32 parameters, gradients and states over the ranks of a copy; bf16 compute. Experts
    that lie on several ranks are shared by those that hold the `same`, and their gradients, which
    are of all ranks' tokens, divided by all."""
    settings: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": LAYOUT["reshard"],
    }
    if LAYOUT["offload"]:
        settings["offload_policy"] = CPUOffloadPolicy()
    blocks: Any = stage.get_submodule(blocks_name(stage))
    for block in blocks:
        for experts in experts_of(block).values() if same is not None else ():
            held: Any = fully_shard(experts, mesh=same, **settings)
            held.set_gradient_divide_factor(mesh.size())
        fully_shard(block, mesh=mesh, **settings)
    fully_shard(stage, mesh=mesh, **settings)


def stages_of(model: nn.Module, layout: dict[str, Any], number: int) -> list[nn.Module]:
    """The stages of rank `number` of a pipeline."""
    num_stages = layout["pipeline"] * layout["stages_a_rank"]
    if not is_decoder(model):
        if num_stages > 1:
            raise SystemExit("a model of your own cannot be cut into stages here")
        return [Whole(model)]
    num_blocks = len(model.get_submodule(blocks_name(model)))  # type: ignore[arg-type]
    bounds = [num_blocks * stage // num_stages for stage in range(num_stages + 1)]
    own = list(range(number, num_stages, layout["pipeline"]))
    if layout["zero_bubble"]:  # the last stage lies on the first rank
        own[1] = num_stages - 1 - number
    return [DecoderStage(model, range(bounds[stage], bounds[stage + 1])) for stage in own]


def lay_out(stage: nn.Module, mesh: DeviceMesh, within: DeviceMesh) -> None:
    """Lets the ranks share a stage as LAYOUT says, and gives it values."""
    if LAYOUT["float8"]:
        use_float8(stage)
    if LAYOUT["tensor"] > 1:
        split_layers(stage, mesh["tensor"])
    if LAYOUT["expert"] > 1:
        split_experts(stage, within["expert"])
    if LAYOUT["checkpoint"]:
        recompute(stage)
    outer = ("replicate",) if LAYOUT["replicate"] > 1 else ()
    same = within[(*outer, "same")] if LAYOUT["expert"] > 1 else None
    shard(stage, mesh[(*outer, "shard")], same)
    initialize(stage)


def initialize(stage: nn.Module) -> None:
    """Values for a model that was made without any: small ones, as for a new one."""
    stage.to_empty(device="cpu" if LAYOUT["offload"] else "cuda")
    for name, weight in stage.named_parameters():
        with torch.no_grad():
            nn.init.ones_(weight) if "norm" in name else nn.init.normal_(weight, std=0.02)
    if isinstance(stage, DecoderStage):
        angles: Any = stage.rotary_emb
        stage.rotary_emb = type(angles)(angles.config).to("cuda")
        if LAYOUT["context"] > 1:
            stage.places = torch.arange(LAYOUT["sequence"], device="cuda")[None]


# -- training --------------------------------------------------------------------------------------


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batches(vocabulary: int, shape: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of a rank's micro-batches: put your loader here."""
    while True:
        tokens = torch.randint(vocabulary, (shape[0], shape[1] + 1)).cuda(non_blocking=True)
        yield tokens[:, :-1], tokens[:, 1:]


def vocabulary_of(stage: nn.Module) -> int:
    """As many tokens as its embedding has rows."""
    sizes = [m.num_embeddings for m in stage.modules() if isinstance(m, nn.Embedding)]
    heads = [m.out_features for m in stage.modules() if isinstance(m, nn.Linear)]
    return max(sizes) if sizes else max(heads)


def main() -> None:
    """Trains STEPS steps."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    sizes = {name: LAYOUT[name] for name in ("pipeline", "replicate", "shard", "tensor")}
    sizes["shard"] *= LAYOUT["context"]
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    number = mesh["pipeline"].get_local_rank()
    model = build_model(MODEL)
    vocabulary = vocabulary_of(model)
    stages = stages_of(model, LAYOUT, number)
    for stage in stages:
        lay_out(stage, mesh, _within_copy(mesh))
    train_step = _step_of(stages, mesh, vocabulary)
    parameters = [weight for stage in stages for weight in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    for step in range(STEPS):
        loss = train_step()
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None and step % 10 == 9:
            print(f"rank {dist.get_rank()}, step {step + 1}: loss {loss.item():.3f}")
    dist.destroy_process_group()


@cache
def _within_copy(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh with the ranks that share a copy divided, once, as that makes process groups: those
    that hold the same experts ("same"), that share experts, and that share a sequence."""
    expert, context = LAYOUT["expert"], LAYOUT["context"]
    if expert * context == 1:
        return mesh
    sizes = LAYOUT["shard"] // expert, expert, context
    found: DeviceMesh = mesh._unflatten("shard", sizes, ("same", "expert", "context"))
    return found


def _step_of(stages: list[nn.Module], mesh: DeviceMesh, vocabulary: int) -> Callable[[], Any]:
    """What a step's forwards and backwards are: in turn, or through a pipeline."""
    times, rows = LAYOUT["num_micro_batches"], LAYOUT["micro_batch"]
    if LAYOUT["pipeline"] == 1:
        source = batches(vocabulary, (rows, LAYOUT["sequence"]))
        return lambda: _accumulated(stages[0], mesh, source, times)
    number = mesh["pipeline"].get_local_rank()
    whole = batches(vocabulary, (rows * times, LAYOUT["sequence"]))
    schedule = _schedule(stages, mesh, number, times)
    return lambda: _pipelined(schedule, stages, mesh, whole)


def _sharing(
    mesh: DeviceMesh, stages: list[nn.Module], *tokens: Tensor
) -> AbstractContextManager[None]:
    """Shares the sequence of these tokens, where LAYOUT says so."""
    if LAYOUT["context"] == 1:
        return nullcontext()
    return share_sequence(_within_copy(mesh)["context"], stages, list(tokens))


def _accumulated(
    stage: Any, mesh: DeviceMesh, source: Iterator[tuple[Tensor, Tensor]], times: int
) -> Tensor | None:
    loss = None
    for turn in range(times):
        if not LAYOUT["reshard"]:
            stage.set_requires_gradient_sync(turn == times - 1)
            stage.set_reshard_after_backward(turn == times - 1)
        tokens, targets = next(source)
        with _sharing(mesh, [stage], tokens, targets), loss_parallel():
            loss = loss_of(stage(tokens), targets) / times
            torch.autograd.backward(loss)
    return loss


def _schedule(stages: list[nn.Module], mesh: DeviceMesh, number: int, times: int) -> Any:
    pipeline, per_rank = LAYOUT["pipeline"], LAYOUT["stages_a_rank"]
    group = mesh["pipeline"].get_group()
    device = torch.device("cuda", torch.cuda.current_device())
    places = [number + turn * pipeline for turn in range(per_rank)]
    if LAYOUT["zero_bubble"]:
        places[1] = 2 * pipeline - 1 - number
    made = [
        PipelineStage(stage, place, pipeline * per_rank, device, group=group)
        for place, stage in zip(places, stages, strict=True)
    ]
    if LAYOUT["zero_bubble"]:
        return ScheduleZBVZeroBubble(made, times, loss_fn=loss_of)  # type: ignore[arg-type]
    if per_rank == 1:
        return Schedule1F1B(made[0], times, loss_fn=loss_of)
    return ScheduleInterleaved1F1B(made, times, loss_fn=loss_of)  # type: ignore[arg-type]


def _pipelined(
    schedule: Any,
    stages: list[nn.Module],
    mesh: DeviceMesh,
    source: Iterator[tuple[Tensor, Tensor]],
) -> Tensor | None:
    tokens, targets = next(source)
    number = mesh["pipeline"].get_local_rank()
    is_last = number == (0 if LAYOUT["zero_bubble"] else LAYOUT["pipeline"] - 1)
    losses: list[Tensor] = []
    with _sharing(mesh, stages, tokens, targets), loss_parallel():
        schedule.step(
            *((tokens,) if number == 0 else ()),
            target=targets if is_last else None,
            losses=losses if is_last else None,
        )
    return torch.stack(losses).mean() if losses else None


if __name__ == "__main__":
    main()

"""GPT-2 in FP32 over several GPUs, as the NeuSight paper measured it: no optimizer.

dp: DistributedDataParallel, a share of the sequences each. tp: heads and hidden units over the
ranks, as Megatron splits them (an all-reduce a half block, each direction), embeddings and head on
each. pp: the layers over the ranks, one micro-batch, so that one rank works at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neusight.integrations.suites.case import CannotBuild, CaseProgram, Step
from neusight.integrations.suites.programs.language import language_model


def split_step(program: CaseProgram, settings: Mapping[str, Any]) -> Step:
    """One step of this rank; its process group stays open until the forecast ends."""
    if settings["architectures"][0] != "GPT2LMHeadModel":
        raise CannotBuild("only GPT-2 is split over GPUs here")
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ranks, model = dist.get_world_size(), language_model(settings, mode=program.mode)
    batch = program.batch // ranks if program.split == "dp" else program.batch
    tokens = torch.ones(batch, program.size, dtype=torch.long, device="cuda")
    if program.split == "pp":
        stage, width = Stage(model, dist.get_rank(), ranks), model.config.n_embd
        return lambda: _stage_step(stage, tokens, width)
    if program.split == "tp":
        split_over_ranks(model, ranks)
    run = nn.parallel.DistributedDataParallel(model) if program.split == "dp" else model
    return lambda: _whole_step(run, tokens)


def _whole_step(run: Any, tokens: Tensor) -> None:
    run(tokens).logits.sum().backward()
    run.zero_grad()
    torch.cuda.synchronize()


class CopiedToRanks(torch.autograd.Function):
    """Into a split layer: as it is forward, summed over the ranks backward."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


class SummedOverRanks(torch.autograd.Function):
    """Out of a split layer: summed over the ranks forward, as it is backward."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


def _summed(x: Tensor) -> Tensor:
    x = x.contiguous()
    dist.all_reduce(x)
    return x


def split_over_ranks(model: Any, ranks: int) -> None:
    """Splits heads and hidden units over the ranks; norms, embeddings and the head are copied."""
    from transformers import pytorch_utils

    layer_of: Any = pytorch_utils.Conv1D  # its constructor has no annotations
    enter, leave = cast(Any, CopiedToRanks).apply, cast(Any, SummedOverRanks).apply  # nor has apply
    for block in model.transformer.h:
        attention, mlp = block.attn, block.mlp
        width = attention.embed_dim
        attention.num_heads //= ranks
        attention.split_size //= ranks
        attention.c_attn = layer_of(3 * width // ranks, width)
        attention.c_proj = layer_of(width, width // ranks)
        mlp.c_fc = layer_of(4 * width // ranks, width)
        mlp.c_proj = layer_of(width, 4 * width // ranks)
        for layer in (attention.c_attn, mlp.c_fc):
            layer.register_forward_pre_hook(lambda _, inputs: (enter(inputs[0]),))
        for layer in (attention.c_proj, mlp.c_proj):
            layer.register_forward_hook(lambda _, inputs, output: leave(output))
    model.cuda()


class Stage(nn.Module):
    """The layers of one rank, with the embeddings before the first and the head behind the last."""

    def __init__(self, model: Any, rank: int, ranks: int) -> None:
        super().__init__()
        body = model.transformer
        own = len(body.h) // ranks
        self.blocks = nn.ModuleList(body.h[rank * own : (rank + 1) * own])
        self.embeddings = nn.ModuleList([body.wte, body.wpe, body.drop]) if rank == 0 else None
        self.head = nn.Sequential(body.ln_f, model.lm_head) if rank == ranks - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or hidden states in, hidden states or logits out."""
        if self.embeddings is not None:
            tokens, places, dropout = self.embeddings
            x = dropout(tokens(x) + places(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            found = block(x)
            x = found[0] if isinstance(found, tuple) else found
        return x if self.head is None else self.head(x)


def _stage_step(stage: Stage, tokens: Tensor, width: int) -> None:
    """Forward and backward of one rank's layers, with what the neighbours send."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    inputs = tokens
    if rank > 0:
        inputs = torch.empty(*tokens.shape, width, device="cuda", requires_grad=True)
        dist.recv(inputs.data, rank - 1)
    output = stage(inputs)
    if rank == last:
        output.sum().backward()
    else:
        dist.send(output.detach(), rank + 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, rank + 1)
        output.backward(gradient)
    if rank > 0:
        assert inputs.grad is not None
        dist.send(inputs.grad, rank - 1)
    stage.zero_grad()
    torch.cuda.synchronize()

"""Hugging Face's GPT-2 in FP32 on four GPUs, as the NeuSight paper measured it: no optimizer.

dp: DistributedDataParallel, a sequence each. tp: the heads and hidden units over the ranks, as
Megatron splits them (an all-reduce a half block, each direction), embeddings and head on each. pp:
the layers over the ranks, one micro-batch, so that one rank works at a time.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from split_layers import Shared, Summed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers.pytorch_utils import Conv1D

CONFIGURATIONS = Path(__file__).parents[3] / "shared" / "data" / "paper_fp32" / "model_configs.json"
_NOT_OF_THE_MODEL = ("architectures", "transformers_version", "torch_dtype", "model_type")


def _share(layer: nn.Module) -> None:
    layer.register_forward_pre_hook(lambda module, inputs: (Shared.apply(inputs[0], None),))


def _sum(layer: nn.Module) -> None:
    layer.register_forward_hook(lambda module, inputs, output: Summed.apply(output, None))


def split(model: Any, ranks: int) -> None:
    """Heads and hidden units over the ranks; norms, embeddings and the head on each."""
    for block in model.transformer.h:
        attention, mlp = block.attn, block.mlp
        width = attention.embed_dim
        attention.num_heads //= ranks
        attention.split_size //= ranks
        attention.c_attn = Conv1D(3 * width // ranks, width)
        attention.c_proj = Conv1D(width, width // ranks)
        mlp.c_fc = Conv1D(4 * width // ranks, width)
        mlp.c_proj = Conv1D(width, 4 * width // ranks)
        for layer in (attention.c_attn, mlp.c_fc):
            _share(layer)
        for layer in (attention.c_proj, mlp.c_proj):
            _sum(layer)


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
        if self.embeddings is not None:
            tokens, places, dropout = self.embeddings
            x = dropout(tokens(x) + places(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            found = block(x)
            x = found[0] if isinstance(found, tuple) else found
        return x if self.head is None else self.head(x)


def stage_step(stage: Stage, tokens: Tensor, width: int) -> None:
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
        dist.send(inputs.grad, rank - 1)


def built(name: str) -> Any:
    settings = json.loads(CONFIGURATIONS.read_text())[name]
    model_class = getattr(transformers, settings["architectures"][0])
    known = {key: value for key, value in settings.items() if key not in _NOT_OF_THE_MODEL}
    config = model_class.config_class(**known)
    config._attn_implementation, config.use_cache = "eager", False
    with torch.device("cuda"):
        return model_class(config)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--model", default="gpt2_large")
    made.add_argument("--how", choices=("dp", "tp", "pp"), default="dp")
    made.add_argument("--batch", type=int, default=4, help="sequences, all ranks")
    made.add_argument("--seq", type=int, default=1024)
    made.add_argument("--steps", type=int, default=4)
    return made


def main() -> None:
    options = parser().parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ranks, model = dist.get_world_size(), built(options.model)
    width, run = model.config.n_embd, model
    batch = options.batch // ranks if options.how == "dp" else options.batch
    if options.how == "dp":
        run = DistributedDataParallel(model)
    elif options.how == "tp":
        split(model.cuda(), ranks)
        model.cuda()
    else:
        run = Stage(model, dist.get_rank(), ranks)
    tokens = torch.zeros(batch, options.seq, dtype=torch.long, device="cuda")
    for _ in range(options.steps):
        if options.how == "pp":
            stage_step(run, tokens, width)
        else:
            run(tokens).logits.sum().backward()
        run.zero_grad()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

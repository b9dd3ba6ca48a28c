"""Llama under FSDP2, as torchtitan trains it (and, replicated over hosts, fms-fsdp).

torchtitan, `torchtitan/models/llama` and `parallelize_llama.py`: parameters in fp32, bf16 compute,
fp32 reduction; recomputation of all but every second matmul ("op") or of whole blocks ("full");
each block compiled by itself; fused AdamW; the norm of the gradients clipped; with `--tensor`
layers split as its `apply_tp` does, the sequence between them, a loss over a split vocabulary.
fms-fsdp: FSDP over a host, replicated over hosts (`--shard`), bf16 reduction.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

#: Vocabulary, width, layers, heads, key/value heads, hidden width.
SIZES = {
    "llama2-7b": (32000, 4096, 32, 32, 32, 11008),
    "llama2-34b": (32000, 8192, 48, 64, 8, 22016),
    "llama2-70b": (32000, 8192, 80, 64, 8, 28672),
    "llama3-8b": (128256, 4096, 32, 32, 8, 14336),
    "llama3-70b": (128256, 8192, 80, 64, 8, 28672),
}
#: What "op" keeps besides every second matmul (torchtitan, `_save_list`).
_KEPT = {
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


class RMSNorm(nn.Module):
    """In fp32, as torchtitan's own (2024)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions as complex factors, heads as [batch, sequence, heads, width]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.dim, self.repeats = width // heads, heads // kv_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = (
            layer(x).view(batch, length, -1, self.dim) for layer in (self.wq, self.wk, self.wv)
        )
        query, key, value = parts
        query, key = rotated(query, angles), rotated(key, angles)
        if self.repeats > 1:
            key, value = (self.repeated(part) for part in (key, value))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))

    def repeated(self, x: Tensor) -> Tensor:
        batch, length, heads, dim = x.shape
        wide = x[:, :, :, None].expand(batch, length, heads, self.repeats, dim)
        return wide.reshape(batch, length, heads * self.repeats, dim)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        vocabulary, width, num_layers, heads, kv_heads, hidden = SIZES[size]
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        blocks = [Block(width, heads, kv_heads, hidden) for _ in range(num_layers)]
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        shape = (length, width // heads // 2)
        self.register_buffer("angles", torch.empty(shape, dtype=torch.complex64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.output(self.norm(x))


def _op_context() -> Any:
    """Keeps what `_KEPT` names, and every second matmul."""
    matmul = torch.ops.aten.mm.default
    seen = {"forward": 0, "again": 0}

    def policy(context: Any, op: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        when = "again" if context.is_recompute else "forward"
        seen[when] += op == matmul
        keeps = op in _KEPT or (op == matmul and seen[when] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recompute(model: Llama, how: str) -> None:
    """ "none", "op", "full", or a number: every so many blocks in full."""
    every = int(how) if how.isdecimal() else 1
    for number, block in enumerate(model.layers):
        if how == "op":
            model.layers[number] = checkpoint_wrapper(
                block, context_fn=_op_context, preserve_rng_state=False
            )
        elif how != "none" and number % every == 0:
            model.layers[number] = checkpoint_wrapper(block, preserve_rng_state=False)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--size", choices=sorted(SIZES), default="llama3-8b")
    made.add_argument("--batch", type=int, default=2)
    made.add_argument("--seq", type=int, default=8192)
    made.add_argument("--recompute", default="none", help=recompute.__doc__)
    made.add_argument("--shard", type=int, default=0, help="ranks that share a copy (0: all)")
    made.add_argument("--tensor", type=int, default=1, help="ranks that split each layer")
    made.add_argument("--reduce", choices=("fp32", "bf16"), default="fp32")
    made.add_argument("--compile", action="store_true")
    made.add_argument("--compile-loss", action="store_true", help="as torchtitan since April 2025")
    made.add_argument("--float8", choices=("none", "tensorwise", "rowwise"), default="none")
    made.add_argument("--async-tensor", action="store_true", help="its exchanges in parts")
    made.add_argument("--steps", type=int, default=6)
    return made


def split(model: Llama, mesh: Any, *, in_float8: bool) -> None:
    """Layers by columns, then rows; what lies between them by the sequence, gathered in float8
    where one scale is all that goes with it."""
    columns: Any = ColwiseParallel
    rows: Any = RowwiseParallel
    prepare: Any = PrepareModuleInput
    if in_float8:
        from torchao.float8 import float8_tensor_parallel

        columns = float8_tensor_parallel.Float8ColwiseParallel
        rows = float8_tensor_parallel.Float8RowwiseParallel
        prepare = float8_tensor_parallel.PrepareFloat8ModuleInput
    into = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    out_of = rows(output_layouts=Shard(1))
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for block in model.layers:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": prepare(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"attention.{name}": columns() for name in ("wq", "wk", "wv")},
                "attention.wo": out_of,
                "ffn_norm": SequenceParallel(),
                "feed_forward": prepare(**into),
                **{f"feed_forward.{name}": columns() for name in ("w1", "w3")},
                "feed_forward.w2": out_of,
            },
        )


def use_float8(model: Llama, recipe: str) -> None:
    """torchao's linear layers, all but the last ("output"); tensorwise scales are gathered in
    float8 by FSDP."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = (
        Float8LinearConfig(enable_fsdp_float8_all_gather=True)
        if recipe == "tensorwise"
        else Float8LinearConfig.from_recipe_name(recipe)
    )
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: name != "output"
    )


def sharded(model: Llama, mesh: Any, options: argparse.Namespace) -> None:
    reduce_type = torch.float32 if options.reduce == "fp32" else torch.bfloat16
    how: dict[str, Any] = {
        "mesh": mesh["own"] if mesh["copies"].size() == 1 else mesh["copies", "own"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_type),
    }
    for block in model.layers:
        fully_shard(block, **how)
    fully_shard(model, **how)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Of all tokens. torchtitan did not compile it at the end of 2024 ("causes CUDA errors, turning
    off for now"), and does since its pull request 1033, of April 2025."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main() -> None:
    options = parser().parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention, as in all these figures
    with torch.device("meta"):
        model = Llama(options.size, options.seq)
    copies = dist.get_world_size() // options.tensor
    shard = options.shard or copies
    mesh = init_device_mesh(
        "cuda",
        (copies // shard, shard, options.tensor),
        mesh_dim_names=("copies", "own", "tensor"),
    )
    if options.float8 != "none":
        use_float8(model, options.float8)
    if options.tensor > 1:
        split(model, mesh["tensor"], in_float8=options.float8 == "tensorwise")
    if options.async_tensor:  # torchtitan, distributed/tensor_parallel.py
        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh["tensor"].get_group().group_name)
    recompute(model, options.recompute)
    if options.compile:
        for number, block in enumerate(model.layers):
            model.layers[number] = torch.compile(block, fullgraph=True)
    loss_function = torch.compile(loss_of) if options.compile_loss else loss_of
    sharded(model, mesh, options)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    shape = (options.batch, options.seq)
    vocabulary = SIZES[options.size][0]
    for _ in range(options.steps):
        tokens = torch.randint(vocabulary, shape).pin_memory().to("cuda", non_blocking=True)
        labels = torch.randint(vocabulary, shape).pin_memory().to("cuda", non_blocking=True)
        optimizer.zero_grad()
        with loss_parallel() if options.tensor > 1 else nullcontext():
            logits = model(tokens)
            found = loss_function(logits, labels)
            del logits
            found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        if options.float8 == "tensorwise":
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

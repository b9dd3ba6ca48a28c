"""Megatron-Core's GPT: tensor or pipeline parallel, with its distributed optimizer; layers of torch
(without Transformer Engine and Apex)."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from small_llama import BATCH, HEADS, HIDDEN, LAYERS, SEQUENCE, STEPS, VOCABULARY, WIDTH

parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--pp", type=int, default=1)
parser.add_argument("--micro-batches", type=int, default=1)
options = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
parallel_state.initialize_model_parallel(options.tp, options.pp)
model_parallel_cuda_manual_seed(1)
half = torch.bfloat16
config = TransformerConfig(
    num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, ffn_hidden_size=HIDDEN,
    bf16=True, params_dtype=half, pipeline_dtype=half,
    tensor_model_parallel_size=options.tp, pipeline_model_parallel_size=options.pp,
    gradient_accumulation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
    bias_activation_fusion=False, persist_layer_norm=False, attention_softmax_in_fp32=True,
)  # fmt: skip
model: Any = GPTModel(
    config, get_gpt_layer_local_spec(normalization="LayerNorm"), VOCABULARY, SEQUENCE,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
    share_embeddings_and_output_weights=False,
)  # fmt: skip
model = DistributedDataParallel(
    config, DistributedDataParallelConfig(use_distributed_optimizer=True), model.cuda().bfloat16()
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, params_dtype=half, use_distributed_optimizer=True
    ),
    [model],
)
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss


def forward_step(batches: Any, stage: Any) -> Any:
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE), device="cuda")
    places = torch.arange(SEQUENCE, device="cuda")[None].expand(BATCH, -1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda").triu(1)
    losses = stage(tokens, places, mask, labels=tokens)
    return losses, lambda found: (found.float().mean(), {"loss": found.detach().mean()})


run = get_forward_backward_func()
for _ in range(STEPS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward_step, data_iterator=iter(range(100)), model=[model],
        num_microbatches=options.micro_batches, seq_length=SEQUENCE, micro_batch_size=BATCH,
        decoder_seq_length=SEQUENCE, forward_only=False,
    )  # fmt: skip
    optimizer.step()

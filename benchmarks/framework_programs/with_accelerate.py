"""A loop of one's own under accelerate: DDP, FSDP1 or FSDP2."""

from __future__ import annotations

import sys

import small_llama
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

kind = sys.argv[1]
plugin = None
if kind != "ddp":
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=int(kind[-1]),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=True,
        sync_module_states=True if kind == "fsdp1" else None,
        state_dict_type="SHARDED_STATE_DICT",
    )
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
model = small_llama.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer, batches = accelerator.prepare(model, optimizer, small_llama.loader())
for step, batch in enumerate(batches):
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == small_llama.STEPS:
        break

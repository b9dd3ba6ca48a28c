"""Lightning: DDP, FSDP, or FSDP2 over tensor parallelism (ModelParallelStrategy)."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import small_llama
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

kind = sys.argv[1]


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None

    def configure_model(self) -> None:
        if self.model is not None:
            return
        self.model = small_llama.model()
        if kind != "tp":
            return
        for block in self.model.model.layers:
            plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
                    "mlp.down_proj": RowwiseParallel()}  # fmt: skip
            parallelize_module(block, self.device_mesh["tensor_parallel"], plan)
            fully_shard(block, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, index: int) -> Any:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


strategies: dict[str, Any] = {
    "ddp": "ddp",
    "fsdp": FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer}),
    "tp": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2),
}
lightning.Trainer(
    accelerator="gpu", devices=4, strategy=strategies[kind], max_steps=small_llama.STEPS,
    precision="bf16-true" if kind == "tp" else "bf16-mixed", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Module(), small_llama.loader())  # fmt: skip

"""litgpt's pretraining, as its own command runs it on several GPUs (FSDP1)."""

from __future__ import annotations

from pathlib import Path

import small_llama
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from litgpt.pretrain import setup
from torch import Tensor
from torch.utils.data import DataLoader


class Tokens(DataModule):
    """Sequences with the token that follows."""

    def connect(self, *, batch_size: int = 1, **others: object) -> None:
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Tensor]:
        import torch

        length = small_llama.SEQUENCE + 1
        rows = [torch.randint(small_llama.VOCABULARY, (length,)) for _ in range(512)]
        return DataLoader(rows, batch_size=self.batch_size)  # type: ignore[arg-type]

    val_dataloader = train_dataloader


ranks = 4
setup(
    "small",
    Config(
        name="small", block_size=small_llama.SEQUENCE, padded_vocab_size=small_llama.VOCABULARY,
        n_layer=small_llama.LAYERS, n_head=small_llama.HEADS, n_embd=small_llama.WIDTH,
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=small_llama.HIDDEN,
    ),
    out_dir=Path("out"), precision="bf16-true", data=Tokens(),
    train=TrainArgs(
        global_batch_size=ranks * small_llama.BATCH, micro_batch_size=small_llama.BATCH,
        max_tokens=ranks * small_llama.BATCH * small_llama.SEQUENCE * small_llama.STEPS,
        max_norm=1.0, save_interval=1000, log_interval=1000, lr_warmup_steps=1,
    ),
    eval=EvalArgs(interval=1000, max_iters=0, initial_validation=False, final_validation=False),
    devices=ranks, logger_name="csv",
)  # fmt: skip

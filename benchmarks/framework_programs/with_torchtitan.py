"""torchtitan's trainer and its Llama 3, or a mixture of experts of its Qwen 3 ("mixture"), with
options of its own configuration as arguments:

with_torchtitan.py --parallelism.pipeline_parallel_degree 2 ...
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import torch
from small_llama import BATCH, HEADS, HIDDEN, LAYERS, SEQUENCE, STEPS, VOCABULARY, WIDTH
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.config import ConfigManager
from torchtitan.models import llama3, qwen3
from torchtitan.models.moe import MoEArgs
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer


class Tokens(BaseDataLoader):
    """Sequences for one rank."""

    def __init__(self, *, job_config: Any, **others: Any) -> None:
        self.batch = job_config.training.local_batch_size

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            tokens = torch.randint(VOCABULARY, (self.batch, SEQUENCE + 1))
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


small = llama3.TransformerModelArgs(
    dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, vocab_size=VOCABULARY, multiple_of=1024,
    ffn_dim_multiplier=0.75, max_seq_len=SEQUENCE,
)  # fmt: skip
register_train_spec(
    "small",
    dataclasses.replace(
        llama3.get_train_spec(), model_args={"small": small}, build_tokenizer_fn=None,
        build_dataloader_fn=Tokens, build_validator_fn=None,
    ),
)  # fmt: skip
mixture = qwen3.Qwen3ModelArgs(
    dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=HEADS, head_dim=WIDTH // HEADS,
    vocab_size=VOCABULARY, max_seq_len=SEQUENCE, hidden_dim=HIDDEN, qk_norm=False,
    moe_enabled=True, moe_inter_dim=HIDDEN,
    moe_args=MoEArgs(
        num_experts=4, num_shared_experts=0, top_k=1, score_func="softmax", route_norm=True,
        score_before_experts=False, use_grouped_mm=True, load_balance_coeff=None,
    ),
)  # fmt: skip
register_train_spec(
    "mixture",
    dataclasses.replace(
        qwen3.get_train_spec(), model_args={"small": mixture}, build_tokenizer_fn=None,
        build_dataloader_fn=Tokens, build_validator_fn=None,
    ),
)  # fmt: skip
given = [
    "--model.name", "small", "--model.flavor", "small", "--training.steps", str(STEPS),
    "--training.seq_len", str(SEQUENCE), "--training.local_batch_size", str(BATCH),
    "--metrics.log_freq", "1000", "--activation_checkpoint.mode", "none",
]  # fmt: skip
own = {word for word in sys.argv[1:] if word.startswith("--")}
pairs = [pair for pair in zip(given[::2], given[1::2], strict=True) if pair[0] not in own]
words = [word for pair in pairs for word in pair] + sys.argv[1:]
trainer = Trainer(ConfigManager().parse_args(words))
trainer.train()
trainer.close()

"""torchtune's recipe of full finetuning on several GPUs (FSDP2), with its own tokens and values."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import small_llama
import torch
from omegaconf import OmegaConf
from torch.utils.data import Dataset
from torchtune.models.llama3 import llama3

MODEL = {
    "vocab_size": small_llama.VOCABULARY, "num_layers": small_llama.LAYERS,
    "num_heads": small_llama.HEADS, "num_kv_heads": small_llama.HEADS,
    "embed_dim": small_llama.WIDTH, "intermediate_dim": small_llama.HIDDEN,
    "max_seq_len": small_llama.SEQUENCE,
}  # fmt: skip


class Tokens(Dataset[dict[str, list[int]]]):
    """Sequences that are their own labels."""

    def __init__(self, tokenizer: object) -> None:
        del tokenizer

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        tokens = torch.randint(small_llama.VOCABULARY, (small_llama.SEQUENCE,)).tolist()
        return {"tokens": tokens, "labels": list(tokens)}


class NewValues:
    """A checkpointer that reads no file."""

    def __init__(self, **settings: object) -> None:
        del settings

    def load_checkpoint(self) -> dict[str, Any]:
        return {"model": llama3(**MODEL).state_dict()}


def tokenizer() -> SimpleNamespace:
    return SimpleNamespace(pad_id=0)


def recipe_class() -> Any:
    """Of a script that torchtune brings beside the package, and lets nobody import."""
    found = find_spec("recipes")
    assert found is not None and found.origin is not None
    path = Path(found.origin).with_name("full_finetune_distributed.py")
    return runpy.run_path(str(path))["FullFinetuneRecipeDistributed"]


def main() -> None:
    settings = OmegaConf.create(
        {
            "device": "cuda", "dtype": "bf16", "seed": 0, "output_dir": "out", "epochs": 1,
            "batch_size": small_llama.BATCH, "gradient_accumulation_steps": 1,
            "max_steps_per_epoch": small_llama.STEPS, "resume_from_checkpoint": False,
            "shuffle": False, "clip_grad_norm": 1.0,
            "model": {"_component_": "torchtune.models.llama3.llama3", **MODEL},
            "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5, "fused": True},
            "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
            "metric_logger": {
                "_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "out"
            },
            "tokenizer": {"_component_": "with_torchtune.tokenizer"},
            "dataset": {"_component_": "with_torchtune.Tokens"},
            "checkpointer": {"_component_": "with_torchtune.NewValues", "model_type": "LLAMA3"},
        }
    )  # fmt: skip
    recipe = recipe_class()(cfg=settings)
    recipe.setup(cfg=settings)
    recipe.train()


if __name__ == "__main__":
    main()

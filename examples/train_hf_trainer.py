"""Trains a small Llama with Hugging Face's Trainer on one CUDA GPU; nothing is downloaded."""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY = 8192


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Texts of random tokens."""

    def __init__(self, num_texts: int, seq: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (num_texts, seq))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        num_key_value_heads=arguments.width // 64,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=arguments.batch,
            gradient_accumulation_steps=arguments.accumulate,
            max_steps=arguments.steps,
            bf16=True,
            report_to=[],
            save_strategy="no",
            logging_steps=5,
            disable_tqdm=True,
        )
        num_texts = arguments.batch * arguments.accumulate * arguments.steps
        texts = RandomTokens(num_texts, arguments.seq)
        Trainer(model=LlamaForCausalLM(config), args=settings, train_dataset=texts).train()


if __name__ == "__main__":
    main()

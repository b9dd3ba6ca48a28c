"""Generates text with Llama 3 8B in bf16 from its configuration on one CUDA GPU; no download."""

from __future__ import annotations

import argparse
import time

import torch
from train_llama import VOCABULARY, build, llama3_8b


@torch.inference_mode()
def generate(model: torch.nn.Module, *, batch: int, prompt: int, tokens: int) -> None:
    model.eval()
    ids = torch.randint(VOCABULARY, (batch, prompt), device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)  # type: ignore[operator]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(f"{batch} x {tokens} tokens in {seconds:.2f} s: {batch * tokens / seconds:,.0f} tokens/s")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model = build(llama3_8b(arguments.layers), recompute=False)
    generate(model, batch=arguments.batch, prompt=arguments.prompt, tokens=arguments.tokens)


if __name__ == "__main__":
    main()

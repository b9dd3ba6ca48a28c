"""gpt-fast's generation, batch 1: a prompt of five tokens, then token after token, compiled.

The model, the quantization, the tensor parallelism and the loop are those of a checkout of gpt-fast
(`--programs` has the folder `gpt-fast`); only the checkpoint and the tokenizer are left out, which
decide no time.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import torch

_TOP_K, _TEMPERATURE = 200, 0.8  # generate.py's defaults


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a name in its model.py")
    parser.add_argument("--weights", default="bf16", help="bf16, int8, or int4-GROUP")
    parser.add_argument("--tokens", type=int, default=8)
    return parser.parse_args()


def main() -> None:
    """The command."""
    options = _parsed()
    sys.path.insert(0, str(options.programs / "gpt-fast"))
    tokenizer: Any = types.ModuleType("tokenizer")
    tokenizer.get_tokenizer = None
    sys.modules["tokenizer"] = tokenizer
    import generate
    import quantize
    from model import Transformer
    from tp import apply_tp, maybe_init_dist

    rank = maybe_init_dist()
    with torch.device("meta"):
        model = Transformer.from_name(options.model)
    kind, _, group = options.weights.partition("-")
    if kind == "int8":
        model = quantize.WeightOnlyInt8QuantHandler(model).convert_for_runtime()
    elif kind == "int4":
        model = quantize.WeightOnlyInt4QuantHandler(model, int(group)).convert_for_runtime()
    model = model.to_empty(device="cuda")
    if rank is not None:
        apply_tp(model)
    model = model.to(dtype=torch.bfloat16).eval()
    generate.decode_one_token = torch.compile(
        generate.decode_one_token, mode="reduce-overhead", fullgraph=True
    )
    prompt = torch.randint(0, 1024, (5,), device="cuda", dtype=torch.int64)
    for _ in range(2):  # the first compiles
        generate.generate(
            model, prompt, options.tokens, 1, interactive=False, draft_model=None,
            callback=lambda token: token, temperature=_TEMPERATURE, top_k=_TOP_K,
        )  # fmt: skip


if __name__ == "__main__":
    main()

"""Builds Llama 3 8B from its configuration, to be served: no download, no weights.

neusight serve examples/serve_llama.py --gpu H100 --rate 1,4,8,16 --slo ttft=500ms,tpot=30ms
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from train_llama import llama3_8b
from transformers import LlamaForCausalLM


def build(num_layers: int = 32) -> Callable[[Any, Any], tuple[Any, Any]]:
    """What `neusight serve` asks for: token ids and a cache in, logits and the cache out."""
    with torch.device("cuda"):
        model = LlamaForCausalLM(llama3_8b(num_layers)).bfloat16().eval()

    def forward(ids: Any, cache: Any) -> tuple[Any, Any]:
        output = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        return output.logits, output.cache

    return forward

"""Forecasts a model as one of three public profiles ran it, and compares the two.

python examples/compare_with_profile.py bert-small PROFILE.json.gz
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import neusight
from neusight.forecast import Forecast, forecast_options
from neusight.session import Session, SessionOptions

STEPS = 4
#: What the profiled script fed: its 512 characters are this many tokens.
BERT_TOKENS = 141
#: What its DataLoader took a step, on the CPU and in the same thread: images were read, resized and
#: normalized one by one. Taken from the profile, for no forecast of a GPU can know it.
RESNET_LOADER_SECONDS = 0.0698

Step = Callable[[], object]


def bert_small() -> Step:
    """BERT-small for masked words, bfloat16, one text."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    model: nn.Module = BertForMaskedLM(config)
    model.to("cuda", torch.bfloat16).eval()
    tokens = torch.randint(config.vocab_size, (1, BERT_TOKENS), device="cuda")
    mask = torch.ones_like(tokens)
    return lambda: model(input_ids=tokens, attention_mask=mask)


def vit_base() -> Step:
    """ViT-base without a classifier, bfloat16, four images."""
    from transformers import ViTConfig, ViTModel

    model: nn.Module = ViTModel(ViTConfig())
    model.to("cuda", torch.bfloat16).eval()
    images = torch.randn(4, 3, 224, 224, dtype=torch.bfloat16, device="cuda")
    return lambda: model(pixel_values=images)


def resnet50() -> Step:
    """A training step of ResNet-50 as torch 1.9 took it: gradients are zeroed, not dropped, and
    SGD goes from parameter to parameter."""
    from train_resnet50 import NUM_CLASSES, ResNet50

    torch.backends.cudnn.benchmark = True
    model = ResNet50().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, foreach=False)
    images = torch.randn(32, 3, 224, 224)
    labels = torch.randint(NUM_CLASSES, (32,))

    def step() -> None:
        with torch.profiler.record_function("enumerate(DataLoader)#_SingleProcess.__next__"):
            time.sleep(RESNET_LOADER_SECONDS)
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    return step


MODELS: dict[str, tuple[Callable[[], Step], str]] = {
    "bert-small": (bert_small, "H100"),
    "vit-base": (vit_base, "H100"),
    "resnet50": (resnet50, "V100"),
}


def forecast_of(name: str, *, host: str | None = "profiled") -> Forecast:
    """The forecast of one of the three programs on the GPU of its profile."""
    build, gpu_name = MODELS[name]
    trains = name == "resnet50"
    # The profiled torch took flash attention; today's would take cuDNN's on an H100.
    attention = nullcontext() if trains else sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    # As `neusight run` does it: time is virtual, so the loader's sleep takes no time here.
    options = SessionOptions(forecast_options(gpu_name, host=host), virtual_time=True)
    with Session(options) as forecast:
        step = build()
        with attention, nullcontext() if trains else torch.inference_mode():
            for _ in range(STEPS):
                step()
                if not trains:
                    torch.cuda.synchronize()
                forecast.step()
    return forecast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("profile", type=Path, help="the trace that torch.profiler wrote")
    parser.add_argument("--host", default="profiled", choices=("plain", "older", "profiled"))
    arguments = parser.parse_args()
    forecast = forecast_of(arguments.model, host=arguments.host)
    print(neusight.compare(forecast, arguments.profile).table())


if __name__ == "__main__":
    main()

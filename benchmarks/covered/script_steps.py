"""The step and the batch that the author of each public script means, by its arguments.

Written down from the scripts and the arguments in `script_list.py`, not from forecasts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Meant:
    """A step, as a pattern of the words that say what it is, and what it takes in: samples and
    tokens, 0 where the author counts none, None where a count depends on a tokenizer."""

    step: str
    samples: int | None = 0
    tokens: int | None = 0


def differences(meant: Meant, forecast: dict[str, Any]) -> str:
    """What a forecast has another way, in words."""
    stated = str(forecast["step_is"])
    found = [] if re.fullmatch(meant.step, stated) else [f"the step is {stated!r}"]
    for name in ("samples", "tokens"):
        wanted, counted = getattr(meant, name), forecast[f"{name}_per_step"]
        if wanted is not None and wanted != (counted or 0):
            found.append(f"{counted} {name} a step, meant are {wanted or 'none'}")
    return "; ".join(found)


_HANDS = r"forward and backward, up to the next forward \(no torch\.optim\)"
_AFTER = "(one call|[0-9,]+ calls) without gradients, then "
_ADAM, _ADAMW, _SGD = (f"one step of {name}" for name in ("Adam", "AdamW", "SGD"))
_TUNED = Meant(_ADAMW, samples=4, tokens=None)

#: By the script's name. Those of accelerate's tests have no step that is theirs.
MEANT: dict[str, Meant] = {
    # 4 sequences of 64, accumulated 40 times by default; 8 times over 4 ranks
    "nanoGPT/train": Meant(_ADAMW, 160, 10_240),
    "nanoGPT/train, compiled": Meant(_ADAMW, 160, 10_240),
    "nanoGPT/train, 4 ranks": Meant(_ADAMW, 8, 512),
    "nanoGPT/bench": Meant(_ADAMW, 2, 2048),
    "nanoGPT/sample": Meant("one call of GPT", 1, 1),
    "minGPT/adder": Meant(_ADAMW, 64, 64 * 6),  # two digits and two digits make three
    "minGPT/chargpt": Meant(_ADAMW, 64, 64 * 128),
    "llama2.c/train": Meant(_ADAMW, 16, 16 * 256),  # 4 sequences, accumulated 4 times
    "gpt-fast/generate": Meant(".*one call of Transformer", 1, 1),
    "gpt-fast/generate, compiled": Meant(".*15 calls of decode_one_token", 1, 16),
    # 4 environments for 32 steps, then 4 epochs of 4 batches
    "cleanrl/ppo": Meant(f"{_AFTER}16 steps of Adam", 128),
    "examples/mnist": Meant("one step of Adadelta", 64),
    "examples/mnist_rnn": Meant("one step of Adadelta", 64),
    "examples/vae": Meant(_ADAM, 128),
    "examples/siamese_network": Meant("one step of Adadelta", 64),
    "examples/mnist_forward_forward": Meant(_ADAM, 128),
    "examples/dcgan": Meant(f"{_ADAM} of Discriminator, then {_ADAM} of Generator", 4),
    "examples/fast_neural_style": Meant(_ADAM, 2),
    "examples/imagenet": Meant(_SGD, 8),
    "examples/imagenet, folders": Meant(_SGD, 4),
    "examples/imagenet, spawned": Meant(_SGD, 2),  # 8 over 4 GPUs
    "examples/gat": Meant(_ADAM),  # one graph
    "examples/super_resolution": Meant(_ADAM, 2),
    "examples/word_language_model, LSTM": Meant(_HANDS, None, 4 * 35),
    "examples/word_language_model, Transformer": Meant(_HANDS, None, 4 * 35),
    "examples/distributed/ddp": Meant(_SGD, 20),
    "examples/distributed/ddp-tutorial-series/single_gpu": Meant(_SGD, 32),
    "examples/distributed/ddp-tutorial-series/multigpu": Meant(_SGD, 32),
    "examples/distributed/ddp-tutorial-series/multigpu_torchrun": Meant(_SGD, 32),
    "examples/distributed/ddp-tutorial-series/multinode": Meant(_SGD, 32),
    "examples/distributed/FSDP2": Meant(_ADAM, 32, 32 * 64),
    "examples/distributed/FSDP2, mixed precision": Meant(_ADAM, 32, 32 * 64),
    "examples/distributed/tensor_parallelism/tensor_parallel_example": Meant(_ADAMW, 20),
    "examples/distributed/tensor_parallelism/sequence_parallel_example": Meant(_ADAMW, 20),
    "examples/distributed/tensor_parallelism/fsdp_tp_example": Meant(_ADAMW, 8, 8 * 256),
    "examples/distributed/minGPT-ddp": Meant(_ADAMW, 8, 8 * 128),
    "accelerate/test_script": Meant(_SGD, 8),
    "trl/sft": _TUNED,
    "trl/sft, LoRA and checkpoints": _TUNED,
    "trl/dpo": _TUNED,
    "trl/reward": _TUNED,
    "trl/kto": Meant(f"{_AFTER}{_ADAMW}", 4, None),
    "trl/rloo": Meant(f"{_AFTER}{_ADAMW}", 4, None),
    "trl/grpo": Meant(f"{_AFTER}{_ADAMW}", 4, None),
    # batches of 2, accumulated to 4
    "litgpt/finetune_full": _TUNED,
    "litgpt/finetune_lora": _TUNED,
    "litgpt/finetune_adapter": _TUNED,
    "litgpt/finetune_adapter_v2": _TUNED,
    "litgpt/generate": Meant("one call of .*", 1, 1),
    # an optimizer for each parameter, which steps during the backward pass
    "torchtune/full_finetune_single_device": Meant(
        "21 steps in turn, of 21 different ones", 2, None
    ),
    "torchtune/lora_finetune_single_device": Meant(_ADAMW, 2, None),
    "torchtitan/train, 1 GPU": Meant("one step of OptimizersContainer", 4, 4 * 512),
    "torchtitan/train, 4 GPUs, sharded and compiled": Meant(
        "one step of OptimizersContainer", 4, 4 * 512
    ),
    "open_clip/train, ViT-B-32": Meant(_ADAMW, 4, None),
    "open_clip/train, RN50": Meant(_ADAMW, 4, None),
    # 64 are accumulated, but never more than an epoch: 4 batches of 2 images, or 8
    "ultralytics/yolo train": Meant(_ADAMW, 8),
    "ultralytics/yolo segment": Meant(_ADAMW, 8),
    "ultralytics/yolo pose": Meant(_ADAMW, 8),
    "ultralytics/yolo obb": Meant(_ADAMW, 8),
    "ultralytics/yolo classify": Meant(_ADAMW, 16),
    "ultralytics/rtdetr train": Meant(_ADAMW, 8),
    "ultralytics/yolo predict": Meant("one call of .*", 2),
    "vit-pytorch/training steps of 18 models": Meant(_ADAMW, 2),
    "pytorch_geometric/gcn": Meant(_ADAM),
    "pytorch_geometric/gat": Meant(_ADAM),
    # a beam search of five or three; the alignment of words has one sequence
    "whisper/transcribe": Meant("one call of TextDecoder", 5, 5),
    "whisper/translate, beams": Meant("one call of TextDecoder", 3, 3),
    "whisper/times of words": Meant("one call of TextDecoder", 5, 5),
    "rl_zoo3/dqn": Meant(_ADAM, 64),
    "rl_zoo3/a2c": Meant(f"{_AFTER}one step of RMSprop", 10),  # 2 environments for 5 steps
    "rl_zoo3/ppo": Meant(f"{_AFTER}8 steps of Adam", 128),  # for 64 steps; 2 epochs of 4
    "rl_zoo3/sac": Meant(f"({_AFTER})?one step of Adam.*", 256),
    "rl_zoo3/td3": Meant(f"({_AFTER})?.*steps? of Adam.*, then .*", 2 * 256),
    "rl_zoo3/qrdqn": Meant(_ADAM, 64),
    "denoising-diffusion-pytorch/Trainer": Meant(_ADAM, 16),  # 8, accumulated twice
    "stylegan2-pytorch": Meant(".*, then .*", 2 * 6),
    "lightweight-gan": Meant(".*, then .*", 2 * 4),
}

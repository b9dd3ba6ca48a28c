"""Image models of timm and transformers as others timed them: random images, no data loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from neusight.integrations.suites.case import CannotBuild, CaseProgram, Step


def timm_step(program: CaseProgram) -> Step:
    """A model of timm, by its name there. Both sources, timm's benchmark.py and the main.py of
    DeepLearningExamples, let cuDNN find its fastest kernels."""
    try:
        timm: Any = import_module("timm")
    except ImportError as error:
        raise CannotBuild("timm is not installed: pip install timm") from error
    torch.backends.cudnn.benchmark = True
    model = timm.create_model(program.model).cuda()
    layout = torch.channels_last if program.channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    images = _images(program).contiguous(memory_format=layout)
    run = _compiled(program, model)
    return _stepping(program, model, lambda: run(images))


def vision_step(program: CaseProgram) -> Step:
    """BEiT, ViT and ConvNeXt of transformers, built from their configurations."""
    transformers = _transformers()
    build = next((made for name, made in _MODELS.items() if name in program.model), None)
    if build is None:
        raise CannotBuild(f"{program.model}: its configuration is not available")
    model = build(transformers).cuda().eval()
    images = _images(program)
    run = _compiled(program, model)
    return _stepping(program, model, lambda: run(pixel_values=images).logits)


def sam_step(program: CaseProgram) -> Step:
    """Segment Anything (ViT-H): the image encoder, compiled where the case is, prompts, masks."""
    transformers = _transformers()
    vision = transformers.SamVisionConfig(
        hidden_size=1280,
        num_hidden_layers=32,
        num_attention_heads=16,
        mlp_dim=5120,
        global_attn_indexes=[7, 15, 23, 31],
    )
    config = transformers.SamConfig(vision_config=vision.to_dict())
    dtype = torch.bfloat16 if program.precision == "bf16" else torch.float32
    model = transformers.SamModel(config).to("cuda", dtype).eval()
    model.vision_encoder.forward = _compiled(program, model.vision_encoder.forward)
    images = _images(program).to(dtype)
    points = torch.zeros(program.batch, 1, 1, 2, device="cuda", dtype=dtype)
    return _stepping(program, model, lambda: model(pixel_values=images, input_points=points))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise CannotBuild("transformers is not installed: pip install transformers") from error
    return transformers


_MODELS: Mapping[str, Callable[[Any], Any]] = {
    "beit-base": lambda hf: hf.BeitForImageClassification(hf.BeitConfig(num_labels=21841)),
    "vit-base": lambda hf: hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000)),
    "convnext-large": lambda hf: hf.ConvNextForImageClassification(
        hf.ConvNextConfig(hidden_sizes=[192, 384, 768, 1536], depths=[3, 3, 27, 3])
    ),
}


def _images(program: CaseProgram) -> torch.Tensor:
    return torch.randn(program.batch, 3, program.size, program.size, device="cuda")


def _compiled(program: CaseProgram, model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, compiled where the case is."""
    return torch.compile(model, mode=program.compiled) if program.compiled else model


def _stepping(program: CaseProgram, model: torch.nn.Module, forward: Step) -> Step:
    """Inference with a wait at its end, or a training step by SGD."""
    torch.backends.cuda.matmul.allow_tf32 = program.precision == "tf32"
    if program.mode == "inf":
        model.eval()
        return lambda: _inferred(program, forward)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return lambda: _trained(program, forward, optimizer)


def _autocast(program: CaseProgram) -> AbstractContextManager[Any]:
    is_mixed = program.precision == "amp"
    return torch.autocast("cuda", dtype=torch.float16) if is_mixed else nullcontext()


def _inferred(program: CaseProgram, forward: Step) -> None:
    with torch.no_grad(), _autocast(program):
        forward()
    torch.cuda.synchronize()


def _trained(program: CaseProgram, forward: Step, optimizer: torch.optim.Optimizer) -> None:
    with _autocast(program):
        found: Any = forward()
    found.float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

"""What is found of programs that generate, and of layers with a state, as tables;
NEUSIGHT_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from default_values import numbers_by_default
from priced_kernels import described
from torch import nn

import neusight
from neusight.inference.generation import DecodeCall, Generation
from neusight.inference.kv_cache import kv_bytes_per_token, state_bytes_per_sequence
from neusight.inference.phases import Phases, phase_figures, phase_lines, phases_json
from neusight.inference.pipeline import pipeline_json, pipeline_lines
from neusight.inference.states import RecurrentLayer
from places import require_golden

WIDTH, HEADS, WORDS = 256, 4, 1000


class Language(nn.Module):
    """Two layers of attention over a cache that grows, and a head for every token."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.past: list[tuple[Any, Any]] = []

    def forward(self, ids: torch.Tensor) -> Any:
        x, grown = self.tokens(ids), []
        for at, layer in enumerate(self.qkv):
            q, k, v = (
                p.unflatten(-1, (HEADS, -1)).mT.mT.transpose(1, 2) for p in layer(x).chunk(3, -1)
            )
            if self.past:
                k, v = torch.cat((self.past[at][0], k), 2), torch.cat((self.past[at][1], v), 2)
            grown.append((k, v))
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        self.past = grown
        return self.head(x)

    def keep(self, length: int) -> None:
        self.past = [(k[..., :length, :], v[..., :length, :]) for k, v in self.past]


class Encoder(nn.Linear):
    """Before the loop."""


class Denoiser(nn.Linear):
    """In the loop."""


def generate(batch: int, prompt: int, tokens: int, *, encodes: bool = False) -> None:
    ids = torch.zeros(batch, prompt, dtype=torch.long, device="cuda")
    model = Language().cuda()
    if encodes:
        nn.Sequential(nn.Embedding(WORDS, WIDTH), Encoder(WIDTH, WIDTH)).cuda()(ids)
    for _ in range(tokens):
        ids = model(ids)[:, -1:].argmax(-1)


def twice(*, batch: int) -> None:
    """Prompts of two lengths, each with a cache of its own."""
    for prompt in (40, 200):
        generate(batch, prompt, 6)


def drafted(drafts: int, *, at_once: bool = False) -> None:
    """`at_once`: the first drafts are verified with the prompt."""
    target, draft = Language().cuda(), Language(1).cuda()
    ids = torch.zeros(1, 64, dtype=torch.long, device="cuda")
    proposed = [ids]
    for _ in range(drafts if at_once else 0):
        proposed.append(draft(proposed[-1])[:, -1].argmax(-1, keepdim=True))
    token = target(torch.cat(proposed, 1))[:, -1].argmax(-1, keepdim=True)
    if at_once:
        target.keep(64)
        draft.keep(64)
    else:
        draft(ids)
    for length in range(64, 70):
        proposed = [token]
        for _ in range(drafts):
            proposed.append(draft(proposed[-1])[:, -1].argmax(-1, keepdim=True))
        token = target(torch.cat(proposed, 1)).argmax(-1)[:, :1]
        target.keep(length + 1)
        draft.keep(length + 1)


def denoise(images: int, steps: int) -> None:
    encoder, denoiser, decoder = (
        kind(WIDTH, WIDTH).cuda() for kind in (Encoder, Denoiser, nn.Linear)
    )
    for _ in range(images):
        image = encoder(torch.ones(4, WIDTH, device="cuda"))
        for _ in range(steps):
            image = denoiser(torch.cat([image, image])).chunk(2)[0]
        decoder(image).sum().item()


PROGRAMS: dict[str, Callable[[], None]] = {
    "4 x 100, 8 tokens": lambda: generate(4, 100, 8),
    "1 x 300, 2 tokens": lambda: generate(1, 300, 2),
    "encoded": lambda: generate(2, 3, 6, encodes=True),
    "two prompts": lambda: twice(batch=3),
    "3 drafts": lambda: drafted(3),
    "4 drafts at once": lambda: drafted(4, at_once=True),
    "2 images of 5 steps": lambda: denoise(2, 5),
    "3 images of 2 steps": lambda: denoise(3, 2),
}
#: 4 sequences of 100 tokens; the first of 11 more comes after 2 ms, the others after 10 µs each and
#: 0.1 µs for each token before.
STATED = Generation(
    4, 100, 2000.0, tuple(DecodeCall(101 + at, 10.0 + 0.1 * (101 + at)) for at in range(11))
)
PHASES: dict[str, Phases | None] = {
    "stated": Phases(STATED, 2048.0, 2**30),
    "state": Phases(STATED, 0.0, 2**30, 10.0 * 2**20),
    "encoded": Phases(replace(STATED, encoded=70, encode_us=300.0), 1000.0, 2**30),
    "drafted": Phases(replace(STATED, drafted=4), None, 2**30),
    "cached": Phases(replace(STATED, cached=60, samples=1), 3000.0, -5),
    "no time": Phases(replace(STATED, decodes=(DecodeCall(101, 0.0),)), 2048.0, 2**30),
    "none": None,
}


def lines_of(phases: Phases | None) -> Iterator[str]:
    yield from phase_lines(phases)
    yield from (f"    {name}: {text}" for name, text in phase_figures(phases))
    for name, value in phases_json(phases).items():
        rows = value if isinstance(value, list) else [value]
        yield from (f"    {name} {json.dumps(row)}" for row in rows)


def test_programs_that_generate_have_the_phases_of_the_golden_table() -> None:
    lines = [line for name, phases in PHASES.items() for line in (name, *lines_of(phases))]
    for name, program in PROGRAMS.items():
        with neusight.forecast_on("H100") as forecast, torch.inference_mode():
            program()
        found, pipeline = forecast.phases, forecast.pipeline
        lines += [name, *lines_of(found), *pipeline_lines(pipeline)]
        lines.append(f"    {json.dumps(pipeline_json(pipeline))}")
        lines.append(f"    generation {found.generation if found else None}")
        kept = (
            kv_bytes_per_token(forecast.recording),
            state_bytes_per_sequence(forecast.recording),
        )
        lines.append(f"    a token {kept[0]}, a sequence {kept[1]}")

    require_golden("generation.txt", lines)


def test_layers_with_a_state_launch_the_kernels_of_the_golden_table() -> None:
    lines = []
    for layer in (
        RecurrentLayer(80, 64, 128, 5376, 4, "bfloat16", "float32"),
        RecurrentLayer(1536, 1, 16, 1536, 4, "bfloat16", "float32").shared(2),
        RecurrentLayer(8, 32, 64, 0, 0, "float16", "float16"),
        RecurrentLayer(4, 0, 0, 512, 3, "float32", "float32"),
    ):
        lines.append(f"{layer}: {layer.state_bytes} bytes")
        for tokens in (1, 700):
            lines += [f"  {tokens} tokens", *described(layer.of_tokens(tokens))]
            lines += [f"  {tokens} sequences", *described(layer.of_sequences(tokens))]

    require_golden("state_kernels.txt", lines)


def test_what_is_not_stated_is_as_the_golden_table_has_it() -> None:
    """The numbers of functions and values by default."""
    require_golden("defaults_inference.txt", numbers_by_default("neusight.inference"))

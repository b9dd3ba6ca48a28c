"""Speculative decoding: tokens that are drafted, and one call of a model that verifies them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neusight.forecast import Forecast
from neusight.inference.generation import Generation, generation_of
from recorded_programs import forecast_of

WIDTH, HEADS, WORDS = 128, 4, 1000
PROMPT, DRAFTS, ROUNDS = 96, 3, 5


class Language(nn.Module):
    """Keys and values of all tokens are kept in a cache of one tensor, which grows and is cut."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, WORDS)
        self.past: list[torch.Tensor] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, past = self.tokens(ids), self.past
        self.past = []
        for at, layer in enumerate(self.layers):
            query, key, value = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in layer(x).chunk(3, -1)
            )
            kept = torch.stack((key, value))
            if past:
                kept = torch.cat((past[at], kept), 3)
            self.past.append(kept)
            x = x + F.scaled_dot_product_attention(query, *kept).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.head(x)
        return out

    def keep(self, length: int) -> None:
        self.past = [kept[..., :length, :] for kept in self.past]


@torch.no_grad()
def decode_speculatively(
    target: Language, draft: Language, *, begins_with_drafts: bool = False
) -> list[float]:
    """Microseconds of each round, by the program's own events; one token is kept of each."""
    ids = torch.randint(WORDS, (1, PROMPT), device="cuda")
    if begins_with_drafts:
        proposed = [ids]
        for _ in range(DRAFTS):
            proposed.append(draft(proposed[-1])[:, -1].argmax(-1, keepdim=True))
        token = target(torch.cat(proposed, 1))[:, -1].argmax(-1, keepdim=True)
        target.keep(PROMPT)
        draft.keep(PROMPT)
    else:
        token = target(ids)[:, -1].argmax(-1, keepdim=True)
        draft(ids)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 1)]
    events[0].record()
    for length, event in enumerate(events[1:], start=PROMPT):
        proposed = [token]
        for _ in range(DRAFTS):
            proposed.append(draft(proposed[-1])[:, -1].argmax(-1, keepdim=True))
        token = target(torch.cat(proposed, 1)).argmax(-1)[:, :1]
        target.keep(length + 1)
        draft.keep(length + 1)
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(event) * 1e3 for before, event in pairwise(events)]


def drafting(forecast: Forecast) -> Generation:
    generation = generation_of(forecast.timeline)
    assert generation is not None
    assert generation.drafted
    return generation


def test_a_round_is_the_drafts_and_the_call_that_verifies_them(tmp_path: Path) -> None:
    us: list[float] = []
    forecast = forecast_of(
        lambda: us.extend(decode_speculatively(Language(4).cuda(), Language(1).cuda()))
    )

    generation = drafting(forecast)
    forecast.save(tmp_path / "saved.json.gz")

    assert (generation.samples, generation.prompt, generation.drafted) == (1, PROMPT, DRAFTS)
    # In the first round the draft model reads the prompt, the last one's choice ends the program.
    assert [call.context for call in generation.decodes] == [
        PROMPT + number + DRAFTS for number in range(2, ROUNDS)
    ]
    at_middle = generation.decodes[1].context
    assert generation.tpot_us(at_middle, acceptance=0.0) == pytest.approx(median(us), rel=0.02)
    assert Forecast.load(tmp_path / "saved.json.gz").phases == forecast.phases


def test_the_prompt_of_a_later_text_is_that_of_the_draft_which_reads_it_first() -> None:
    def program() -> None:
        for _ in range(2):
            models = Language(4).cuda(), Language(1).cuda()
            decode_speculatively(*models, begins_with_drafts=True)

    generation = drafting(forecast_of(program))

    assert (generation.prompt, generation.drafted) == (PROMPT, DRAFTS)


def test_what_is_assumed_of_drafts_is_stated() -> None:
    forecast = forecast_of(lambda: decode_speculatively(Language(4).cuda(), Language(1).cuda()))

    reported, phases = forecast.to_json(), forecast.phases
    assert phases is not None
    round_us = phases.generation.tpot_us(phases.generation.first_context, acceptance=0.0)
    assert reported["drafts"]["tokens"] == DRAFTS
    assert reported["drafts"]["tokens_per_round"] == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert reported["tpot_us"]["first"] == pytest.approx(round_us / 2.533, rel=1e-4)
    assert "if 70% of drafted tokens are accepted" in forecast.summary()


def test_both_models_keep_keys_and_values_of_a_token() -> None:
    forecast = forecast_of(lambda: decode_speculatively(Language(4).cuda(), Language(1).cuda()))

    assert forecast.phases is not None
    assert forecast.phases.kv_bytes_per_token == (4 + 1) * 2 * WIDTH * 4


class Translation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Language(1), Language(2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder(ids)
        return out


def test_as_many_words_in_as_out_are_no_drafts() -> None:
    def program() -> None:
        model = Translation().cuda()
        with torch.no_grad():
            for words in (12, 8, 8, 8):
                model.encoder(torch.zeros(1, words, dtype=torch.long, device="cuda"))
                model.encoder.keep(0)
                model.decoder.past = []
                ids = torch.zeros(1, 1, dtype=torch.long, device="cuda")
                for _ in range(8):
                    ids = model(ids)[:, -1].argmax(-1, keepdim=True)

    generation = generation_of(forecast_of(program).timeline)

    assert generation is not None
    assert (generation.drafted, generation.encoded) == (0, 8)


def llama(**sizes: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=1000, pad_token_id=0, eos_token_id=None, bos_token_id=1, **sizes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).bfloat16().cuda().eval()


@pytest.mark.slow
def test_a_step_of_assisted_decoding_is_a_round() -> None:
    def program() -> None:
        model, assistant = llama(num_hidden_layers=3), llama(num_hidden_layers=1)
        assistant.generation_config.num_assistant_tokens = 5
        ids = torch.randint(1000, (1, 64), device="cuda")
        model.generate(ids, max_new_tokens=12, do_sample=False, assistant_model=assistant)

    forecast = forecast_of(program)

    generation = drafting(forecast)
    assert (generation.prompt, generation.drafted) == (64, 5)
    round_us = generation.tpot_us(generation.first_context, acceptance=0.0)
    assert forecast.step_latency_us.median == pytest.approx(round_us, rel=0.02)
    assert forecast.phases is not None
    assert forecast.phases.kv_bytes_per_token == (3 + 1) * 2 * 64 * 2


@pytest.mark.slow
def test_a_lookup_finds_a_text_that_nobody_knows_at_once() -> None:
    def program() -> None:
        ids = torch.randint(1000, (1, 200), device="cuda")
        llama(num_hidden_layers=2).generate(
            ids, max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=4
        )

    forecast = forecast_of(program)

    assert drafting(forecast).drafted == 4
    waits = sum(span.name == "cudaStreamSynchronize" for span in forecast.timeline.host)
    assert waits < 12 * 40

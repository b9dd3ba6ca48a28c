"""Prefill and decode are distinguished in programs that generate, and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from neusight.forecast import Forecast
from neusight.inference.generation import DecodeCall, Generation, _calls, generation_of
from neusight.integrations.check.observation import observe
from neusight.recording.recording import ModelInput
from neusight.timeline.spans import InputSpan, Timeline
from recorded_programs import forecast_of
from timelines import kernel_span, step_span

WIDTH, HEADS, LAYERS, WORDS = 256, 4, 3, 1000
Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        return out.transpose(1, 2).reshape(batch, length, WIDTH), (key, value)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        x, grown = self.tokens(ids), []
        for at, block in enumerate(self.blocks):
            out, kept = block(x, cache[at] if cache else None)
            x = x + out
            grown.append(kept)
        return self.head(x[:, -1]), grown


def found(forecast: Forecast) -> Generation:
    generation = generation_of(forecast.timeline)
    assert generation is not None
    return generation


@torch.no_grad()
def generate(model: Language, *, batch: int, prompt: int, tokens: int) -> list[float]:
    """Microseconds from the start to each token, by the program's own events."""
    ids = torch.randint(WORDS, (batch, prompt), device="cuda")
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(tokens + 1)]
    events[0].record()
    cache: Cache | None = None
    for event in events[1:]:
        logits, cache = model(ids, cache)
        ids = logits.argmax(-1, keepdim=True)
        event.record()
    torch.cuda.synchronize()
    return [events[0].elapsed_time(event) * 1e3 for event in events[1:]]


def test_the_first_token_and_each_more_come_when_the_program_s_own_events_say() -> None:
    us: list[float] = []
    forecast = forecast_of(
        lambda: us.extend(generate(Language().cuda(), batch=4, prompt=512, tokens=12))
    )
    generation = found(forecast)

    assert (generation.samples, generation.prompt) == (4, 512)
    assert (generation.first_context, generation.last_context) == (513, 523)
    assert generation.ttft_us == pytest.approx(us[0], rel=0.05)
    later = median(after - before for before, after in pairwise(us))
    assert generation.tpot_us(518) == pytest.approx(later, rel=0.005)
    assert generation.encode_us == 0


def test_a_saved_recording_and_a_baseline_state_the_same(tmp_path: Path) -> None:
    forecast = forecast_of(lambda: generate(Language().cuda(), batch=1, prompt=64, tokens=8))
    forecast.save(tmp_path / "saved.json.gz")

    assert Forecast.load(tmp_path / "saved.json.gz").phases == forecast.phases
    reported = forecast.to_json()
    metrics = observe(forecast).case.metrics
    assert metrics["ttft_us"] == reported["ttft_us"]
    assert metrics["tpot_us"] == reported["tpot_us"]["last"]
    assert forecast.to_dict()["tpot_us"] == reported["tpot_us"]["last"]


def test_a_prompt_is_the_longest_generation_s() -> None:
    def program() -> None:
        model = Language().cuda()
        generate(model, batch=1, prompt=64, tokens=4)
        generate(model, batch=2, prompt=128, tokens=16)
        generate(model, batch=1, prompt=32, tokens=4)

    generation = found(forecast_of(program))

    assert (generation.samples, generation.prompt, generation.first_context) == (2, 128, 129)


def test_without_a_cache_all_tokens_enter_again() -> None:
    def program() -> None:
        model = Language().cuda()
        ids = torch.zeros(2, 16, dtype=torch.long, device="cuda")
        with torch.inference_mode():
            for _ in range(8):
                ids = torch.cat((ids, model(ids)[0].argmax(-1, keepdim=True)), 1)

    generation = found(forecast_of(program))

    assert [call.context for call in generation.decodes] == list(range(17, 24))


class TokensFirst(nn.Module):
    """Its ids are [tokens, sequences], as those of torch's recurrent layers."""

    def __init__(self, *, recurrent: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.LSTM(WIDTH, WIDTH) if recurrent else nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor, past: Any = None) -> tuple[torch.Tensor, Any]:
        x = self.tokens(ids)
        if isinstance(self.layer, nn.LSTM):
            x, past = self.layer(x, past)
        else:
            past = self.layer(x) if past is None else torch.cat((past, self.layer(x)))
            x = x + past.mean(0, keepdim=True)
        return self.head(x), past


@pytest.mark.parametrize("recurrent", [False, True], ids=["cache", "state"])
@pytest.mark.parametrize("sequences", [1, 4])
def test_ids_may_begin_with_their_tokens(sequences: int, *, recurrent: bool) -> None:
    def program() -> None:
        model, past = TokensFirst(recurrent=recurrent).cuda(), None
        ids = torch.zeros(64, sequences, dtype=torch.long, device="cuda")
        with torch.inference_mode():
            for _ in range(12):
                logits, past = model(ids, past)
                ids = logits[-1:].argmax(-1)

    forecast = forecast_of(program)

    generation = found(forecast)
    assert (generation.samples, generation.prompt) == (sequences, 64)
    assert (generation.first_context, generation.last_context) == (65, 75)
    reported = forecast.to_dict()
    assert (reported["samples_per_step"], reported["tokens_per_step"]) == (sequences, sequences)


def test_one_sequence_after_several_of_its_length_is_no_token_of_them() -> None:
    def program() -> None:
        model = Language().cuda()
        with torch.no_grad():
            for sequences in (8, 1, 1, 1):
                model(torch.zeros(sequences, 64, dtype=torch.long, device="cuda"))

    assert generation_of(forecast_of(program).timeline) is None


class Static(nn.Module):
    """Its cache has space for all tokens; each of them costs the same."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("cache", torch.zeros(2, 1024, WIDTH))

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache[:, at] = self.tokens(ids)
        out: torch.Tensor = self.head(self.cache.mean(1))
        return out


def static(tokens: int) -> Callable[[], None]:
    def program() -> None:
        model, at = Static().cuda(), torch.arange(100, device="cuda")
        ids = torch.zeros(2, 100, dtype=torch.long, device="cuda")
        with torch.inference_mode():
            for _ in range(tokens):
                ids = model(ids, at).argmax(-1, keepdim=True)
                at = at[-1:] + 1

    return program


def test_equal_steps_that_are_kept_once_count_each() -> None:
    forecast = forecast_of(static(40))
    generation = found(forecast)

    assert len(forecast.recording.steps) < 10
    assert (generation.first_context, generation.last_context) == (101, 139)
    assert generation.us_per_context == 0.0
    assert generation.tpot_us(139) == pytest.approx(forecast.step_latency_us.median)


@pytest.mark.parametrize(
    ("parts", "prompt"),
    [
        pytest.param([30, 30, 30], 90, id="equal parts"),
        pytest.param([40, 40, 20], 100, id="the last part is shorter"),
        pytest.param([(0, 30), (0, 30), (0, 30)], 30, id="the same ids again"),
        pytest.param([(0, 40), (30, 70)], 40, id="windows that overlap"),
    ],
)
def test_a_prompt_in_parts_counts_whole_where_modules_keep_the_cache(
    parts: list[Any], prompt: int
) -> None:
    ends = list(accumulate(parts)) if isinstance(parts[0], int) else []
    bounds = list(pairwise([0, *ends])) if ends else parts

    @torch.inference_mode()
    def program() -> None:
        model, at = Static().cuda(), torch.arange(1024, device="cuda")
        ids = torch.zeros(2, 100, dtype=torch.long, device="cuda")
        for start, end in bounds:
            out = model(ids[:, start:end], at[start:end])
        for _ in range(8):
            out = model(out.argmax(-1, keepdim=True), at[end : end + 1])
            end += 1

    generation = found(forecast_of(program))

    assert (generation.prompt, generation.first_context) == (prompt, prompt + 1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(features)
        return out


def test_an_encoder_is_part_of_the_time_to_the_first_token() -> None:
    def program() -> None:
        encoder, decoder = Encoder().cuda(), Language().cuda()
        for _ in range(2):
            with torch.no_grad():
                encoder(torch.zeros(2, 1500, WIDTH, device="cuda"))
                generate(decoder, batch=2, prompt=1, tokens=6)

    generation = found(forecast_of(program))

    assert (generation.prompt, generation.first_context) == (1, 2)
    assert generation.ttft_us > generation.encode_us > 0


def test_a_model_that_is_only_called_generates_nothing() -> None:
    def program() -> None:
        model = Language().cuda()
        with torch.no_grad():
            for _ in range(6):
                model(torch.zeros(4, 128, dtype=torch.long, device="cuda"))

    assert generation_of(forecast_of(program).timeline) is None


def test_neither_does_one_that_is_trained() -> None:
    def program() -> None:
        model = Language().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.zeros(4, 1, dtype=torch.long, device="cuda"))[0].sum().backward()
            optimizer.step()

    forecast = forecast_of(program)

    assert forecast.phases is None
    assert forecast.to_json()["ttft_us"] is None


@given(
    st.floats(1.0, 1e4),
    st.floats(0.0, 10.0),
    st.integers(1, 1000),
    st.integers(5, 300),
    st.floats(2.0, 50.0),
)
def test_one_slow_token_changes_no_line(
    base: float, slope: float, first: int, count: int, times: float
) -> None:
    calls = [DecodeCall(c, base + slope * c) for c in range(first, first + count)]
    calls[0] = calls[0]._replace(latency_us=calls[0].latency_us * times)
    generation = Generation(1, first - 1, 1.0, tuple(calls))

    assert generation.us_per_context == pytest.approx(slope, abs=1e-6 * (1 + base))
    assert generation.tpot_us(2000) == pytest.approx(base + slope * 2000, rel=1e-3)


def test_few_tokens_and_tokens_of_one_context_give_no_slope() -> None:
    rising = tuple(DecodeCall(context, 10.0 * context) for context in range(1, 5))
    level = tuple(DecodeCall(7, latency_us) for latency_us in (1.0, 2.0, 3.0, 4.0, 5.0))

    assert Generation(1, 0, 1.0, rising).us_per_context == 0.0
    assert Generation(1, 0, 1.0, level).us_per_context == 0.0


def called(*steps: Sequence[ModelInput], represents: Sequence[int] = ()) -> Timeline:
    """Calls of a model, each of a millisecond on the GPU, by the steps that hold them."""
    entries = [(entry, number) for number, step in enumerate(steps) for entry in step]
    spans = tuple(InputSpan(entry, 0, number, at) for at, (entry, number) in enumerate(entries))
    kernels = tuple(
        kernel_span(microseconds=1000.0)._replace(start_ns=at * 1_000_000)
        for at in range(len(entries))
    )
    ends = list(accumulate(map(len, steps)))
    found = tuple(
        replace(step_span("eval", 1000.0, represents=count), last_kernel=end)
        for count, end in zip(represents or [1] * len(steps), ends, strict=True)
    )
    return Timeline((), kernels, found, 0, inputs=spans)


TOKEN = ModelInput(2, 1, is_decode=True)


@pytest.mark.parametrize(("tokens", "kept"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 8)])
def test_the_last_call_is_left_out_where_others_say_the_same(tokens: int, kept: int) -> None:
    timeline = called([ModelInput(2, 70), *[TOKEN] * tokens])

    generation = generation_of(timeline)

    assert generation == Generation(
        2, 70, 1000.0, tuple(DecodeCall(71 + at, 1000.0) for at in range(kept))
    )


@pytest.mark.parametrize(
    ("steps", "represents", "contexts"),
    [
        ([[ModelInput(2, 70)], [TOKEN], [TOKEN]], [1, 10, 1], [70, 80, 81]),
        ([[ModelInput(2, 70)], [TOKEN, TOKEN], [TOKEN]], [1, 10, 1], [70, 71, 90, 91]),
        ([[ModelInput(2, 70), TOKEN], [TOKEN]], [5, 1], [70, 71, 72]),
        ([[ModelInput(2, 70)], [ModelInput(2, 30, has_cache=True)], [TOKEN]], [1, 1, 1],
         [70, 100, 101]),
        ([[ModelInput(2, 70)], [ModelInput(2, 30)], [TOKEN]], [1, 1, 1], [70, 30, 31]),
        ([[ModelInput(2, 70)], [ModelInput(2, 71, is_decode=True)]], [1, 3], [70, 71]),
    ],
)  # fmt: skip
def test_tokens_of_steps_that_are_kept_once_are_in_the_context(
    steps: list[list[ModelInput]], represents: list[int], contexts: list[int]
) -> None:
    timeline = called(*steps, represents=represents)

    assert [call.context for call in _calls(timeline)] == contexts


@pytest.mark.parametrize(("count", "slope"), [(4, 0.0), (5, 1.0), (129, 1.0)])
def test_of_more_than_128_calls_every_other_gives_the_slope(count: int, slope: float) -> None:
    """Every other call takes five times as long for each token."""
    calls = [DecodeCall(at, (5.0 if at % 2 and count > 5 else 1.0) * at) for at in range(count)]

    assert Generation(1, 0, 1.0, tuple(calls)).us_per_context == slope
    if count > 5:
        assert Generation(1, 0, 1.0, tuple(calls[:-1])).us_per_context > 2.0


@pytest.mark.parametrize(
    ("prompt", "samples", "encoded"),
    [(1, 6, 70), (4, 2, 70), (4, 3, 0), (5, 2, 0)],
)
def test_an_encoder_is_the_call_before_a_prompt_of_four_tokens_at_most(
    prompt: int, samples: int, encoded: int
) -> None:
    """Of as many samples or a multiple; each call takes a millisecond on the GPU."""
    entries = [
        ModelInput(2, 70),
        ModelInput(samples, prompt),
        *(ModelInput(samples, 1, is_decode=True) for _ in range(7)),
    ]

    generation = generation_of(called(entries))

    assert generation == Generation(
        samples, prompt, 2000.0 if encoded else 1000.0,
        tuple(DecodeCall(prompt + at, 1000.0) for at in range(1, 7)),  # the last may lack its end
        encoded, 1000.0 if encoded else 0.0,
    )  # fmt: skip


def test_nothing_comes_of_nothing() -> None:
    assert generation_of(Timeline((), (), (), 0)) is None

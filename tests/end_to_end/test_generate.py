"""Every way in which transformers generates: prompt, tokens, cache, each counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from neusight.forecast import Forecast
from recorded_programs import forecast_of

transformers = pytest.importorskip("transformers")

WORDS, BATCH, PROMPT, TOKENS = 1000, 2, 64, 8
LAYERS, KV_HEADS, HEAD = 2, 2, 32
#: Keys and values of all layers, in two bytes an element.
BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD * 2
WINDOW = 16

_SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": LAYERS, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {
    **_SIZES, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": KV_HEADS,
}  # fmt: skip


def causal(config: Any) -> Any:
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def llama() -> Any:
    return causal(transformers.LlamaConfig(**_ATTENTION))


def generated(build: Callable[[], Any], **options: Any) -> Forecast:
    def program() -> None:
        ids = torch.randint(2, WORDS, (BATCH, PROMPT), device="cuda")
        given = {name: value() if callable(value) else value for name, value in options.items()}
        build().generate(ids, max_new_tokens=TOKENS, **{"do_sample": False, **given})

    return forecast_of(program)


def padded() -> torch.Tensor:
    mask = torch.ones(BATCH, PROMPT, dtype=torch.long, device="cuda")
    mask[0, : PROMPT // 2] = 0
    return mask


def slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("options", "sequences", "bytes_per_token"),
    [
        ({}, BATCH, BYTES_PER_TOKEN),
        slow({"do_sample": True}, BATCH, BYTES_PER_TOKEN),
        slow({"num_beams": 3}, 3 * BATCH, BYTES_PER_TOKEN + 8),  # its ids are put in order as well
        slow({"attention_mask": padded}, BATCH, BYTES_PER_TOKEN),
        ({"prefill_chunk_size": PROMPT // 4}, BATCH, BYTES_PER_TOKEN),
        # the layer that is fetched ahead
        slow({"cache_implementation": "offloaded"}, BATCH, BYTES_PER_TOKEN / LAYERS),
        slow({"cache_implementation": "static"}, BATCH, BYTES_PER_TOKEN),
    ],
    ids=["dynamic", "sampled", "beams", "padded", "prompt in parts", "offloaded", "static"],
)
def test_prompt_tokens_and_cache_are_those_of_the_call(
    options: dict[str, Any], sequences: int, bytes_per_token: float
) -> None:
    phases = generated(llama, **options).phases

    assert phases is not None
    found = phases.generation
    assert (found.samples, found.prompt, found.cached) == (sequences, PROMPT, 0)
    assert found.last_context == PROMPT + TOKENS - 1
    assert phases.kv_bytes_per_token == bytes_per_token


@pytest.mark.slow
def test_the_parts_of_a_prompt_take_what_they_take_one_after_the_other() -> None:
    whole, parts = (
        generated(llama, **options).phases for options in ({}, {"prefill_chunk_size": PROMPT // 4})
    )

    assert whole is not None
    assert parts is not None
    assert 3 * whole.ttft_us < parts.ttft_us < 5 * whole.ttft_us
    assert parts.tpot_us == pytest.approx(whole.tpot_us, rel=0.02)


def windows() -> Any:
    return causal(transformers.MistralConfig(**_ATTENTION, sliding_window=WINDOW))


def mamba() -> Any:
    return causal(transformers.MambaConfig(**_SIZES, state_size=16, expand=2, conv_kernel=4))


def mamba_2() -> Any:
    sizes = {"num_heads": 8, "head_dim": 32, "state_size": 64, "n_groups": 1, "conv_kernel": 4}
    return causal(transformers.Mamba2Config(**_SIZES, **sizes, expand=2))


def rwkv() -> Any:
    return causal(transformers.RwkvConfig(**_SIZES))


@pytest.mark.parametrize(
    ("build", "num_bytes"),
    [
        slow(windows, WINDOW * BYTES_PER_TOKEN),
        (mamba, LAYERS * 256 * (16 * 4 + 4 * 2)),  # states in four bytes, the convolution's in two
        slow(mamba_2, LAYERS * (8 * 32 * 64 * 4 + (256 + 2 * 64) * 4 * 2)),
        slow(rwkv, LAYERS * 128 * (3 * 4 + 2 * 2)),
    ],
    ids=["sliding window", "Mamba", "Mamba 2", "RWKV"],
)
def test_a_state_is_of_a_sequence_whatever_its_length(
    build: Callable[[], Any], num_bytes: int
) -> None:
    phases = generated(build).phases

    assert phases is not None
    assert (phases.generation.samples, phases.generation.prompt) == (BATCH, PROMPT)
    assert phases.kv_bytes_per_token == 0
    assert phases.kv_bytes_per_sequence == pytest.approx(num_bytes, rel=0.001)
    assert phases.sequences_free == int(phases.free_bytes / phases.kv_bytes_per_sequence)


def test_the_next_turn_of_a_conversation_comes_after_what_is_cached(tmp_path: Path) -> None:
    def program() -> None:
        model, past = llama(), None
        named = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        with torch.inference_mode():
            for length in (PROMPT, PROMPT // 2):
                ids = torch.randint(2, WORDS, (BATCH, length), device="cuda")
                for _ in range(TOKENS):
                    output = model(ids, use_cache=True, **{named: past})
                    ids, past = output.logits[:, -1:].argmax(-1), getattr(output, named)

    forecast = forecast_of(program)
    forecast.save(tmp_path / "saved.json.gz")

    phases = Forecast.load(tmp_path / "saved.json.gz").phases
    assert phases is not None
    found = phases.generation
    cached = PROMPT + TOKENS - 1
    assert (found.prompt, found.cached) == (PROMPT // 2, cached)
    assert found.first_context == cached + PROMPT // 2 + 1


@pytest.mark.slow
def test_a_prompt_that_enters_twice_is_not_twice_as_long() -> None:
    def program() -> None:
        model = llama()
        ids = torch.randint(2, WORDS, (BATCH, PROMPT), device="cuda")
        with torch.inference_mode():
            model(ids, use_cache=True)  # a warm-up
            model.generate(ids, max_new_tokens=TOKENS, do_sample=False)

    phases = forecast_of(program).phases

    assert phases is not None
    assert (phases.generation.prompt, phases.generation.cached) == (PROMPT, 0)


@pytest.mark.slow
def test_a_round_of_an_assistant_is_no_generation_of_its_own() -> None:
    def program() -> None:
        ids = torch.randint(2, WORDS, (1, PROMPT), device="cuda")
        llama().generate(ids, max_new_tokens=TOKENS, do_sample=False, assistant_model=llama())

    phases = forecast_of(program).phases

    assert phases is not None
    assert phases.generation.drafted == TOKENS - 2


@pytest.mark.slow
def test_a_compiled_model_writes_into_the_same_cache() -> None:
    def build() -> Any:
        model = llama()
        model.forward = torch.compile(model.forward)
        return model

    phases = generated(build, cache_implementation="static").phases

    assert phases is not None
    assert (phases.generation.samples, phases.generation.prompt) == (BATCH, PROMPT)
    assert phases.kv_bytes_per_token == BYTES_PER_TOKEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "encoded"), [("whisper", 0), ("t5", PROMPT)], ids=["Whisper", "T5"]
)
def test_an_encoder_is_called_before_the_first_token(kind: str, encoded: int) -> None:
    def program() -> None:
        with torch.device("cuda"):
            if kind == "t5":
                config = transformers.T5Config(
                    vocab_size=WORDS, d_model=128, d_kv=HEAD, num_heads=4, num_layers=LAYERS,
                    d_ff=256, decoder_start_token_id=0, eos_token_id=None,
                )  # fmt: skip
                model = transformers.T5ForConditionalGeneration(config).bfloat16().eval()
                given = torch.randint(2, WORDS, (BATCH, PROMPT))
            else:
                config = transformers.WhisperConfig(
                    d_model=128, encoder_layers=2, decoder_layers=LAYERS, decoder_ffn_dim=256,
                    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
                )  # fmt: skip
                model = transformers.WhisperForConditionalGeneration(config).bfloat16().eval()
                given = torch.zeros(BATCH, 80, 3000, dtype=torch.bfloat16)
        model.generate(given, max_new_tokens=TOKENS, do_sample=False)

    phases = forecast_of(program).phases

    assert phases is not None
    found = phases.generation
    assert (found.samples, found.encoded) == (BATCH, encoded)
    assert found.ttft_us > found.encode_us > 0
    assert phases.kv_bytes_per_token == 2 * LAYERS * 128 * 2
    assert phases.sequences_free is None

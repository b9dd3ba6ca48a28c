"""Figures of a model that generates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.inference.generation import DecodeCall, Generation
from neusight.inference.phases import Phases, phase_lines, phases_json

#: 4 sequences of 100 tokens; the first of 11 more comes after 2 ms, the others after 10 us each and
#: 0.1 us for each token before.
GENERATION = Generation(
    4, 100, 2000.0, tuple(DecodeCall(101 + at, 10.0 + 0.1 * (101 + at)) for at in range(11))
)
PHASES = Phases(GENERATION, kv_bytes_per_token=2048.0, free_bytes=2**30)


def test_a_prompt_and_each_token_are_distinguished() -> None:
    prefill, decode, cache = phase_lines(PHASES)

    assert prefill == "  prefill   4 x 100 tokens: 2.00 ms to the first token (TTFT)"
    assert decode == (
        "  decode    20.1 µs a token (TPOT) at 101 tokens of context, 21.1 µs at 111; "
        "194,175 tokens/s, 48,543.7 a sequence"
    )
    assert cache == (
        "            cache of 2.0 KiB a token; in the 1.00 GiB left fit 524,288 tokens more, "
        "4,723 sequences of 111"
    )


def test_nothing_is_reported_where_nothing_is_generated() -> None:
    assert list(phase_lines(None)) == []
    reported = phases_json(None)
    assert reported.pop("phases") == []
    assert set(reported.values()) == {None}


def test_one_time_is_reported_where_all_tokens_take_it() -> None:
    even = replace(GENERATION, decodes=tuple(DecodeCall(101 + at, 20.0) for at in range(11)))

    _, decode, _ = phase_lines(replace(PHASES, generation=even))

    assert decode.startswith("  decode    20.0 µs a token (TPOT) at 101 tokens of context; ")


@pytest.mark.parametrize("held", [None, 0.0])
def test_without_a_cache_nothing_is_reported_of_it(held: float | None) -> None:
    phases = replace(PHASES, kv_bytes_per_token=held)

    assert len(list(phase_lines(phases))) == 2
    assert phases_json(phases)["kv_tokens_free"] is None


def test_of_an_encoder_s_sequences_nobody_knows_how_many_fit() -> None:
    phases = replace(PHASES, generation=replace(GENERATION, encoded=1500, encode_us=500.0))

    prefill, _, cache = phase_lines(phases)
    assert "4 x 100 tokens after an encoder of 1,500 tokens: 2.00 ms" in prefill
    assert cache.endswith("fit 524,288 tokens more")
    rows = phases_json(phases)["phases"]
    assert [row["phase"] for row in rows] == ["encode", "prefill", "decode"]
    assert [row["latency_us"] for row in rows] == [500.0, 1500.0, 20.6]


def test_no_memory_left_is_room_for_no_token() -> None:
    full = replace(PHASES, free_bytes=-5)

    assert (full.kv_tokens_free, full.sequences_free) == (0, 0)
    assert "in the 0.0 MiB left fit 0 tokens more" in list(phase_lines(full))[2]


def test_json_has_the_line_through_all_contexts() -> None:
    reported = phases_json(PHASES)

    assert reported["ttft_us"] == 2000.0
    assert reported["tpot_us"] == {
        "first": 20.1,
        "last": 21.1,
        "first_context": 101,
        "last_context": 111,
        "us_per_context": 0.1,
    }
    assert reported["tokens_per_s"] == pytest.approx(4e6 / 20.6, abs=0.001)

"""Figures of a model that generates: time to the first token and to each more, its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neusight.inference.generation import ASSUMED_ACCEPTANCE, Generation
from neusight.predictors.formatting import bytes_text, time_text

_US_PER_S = 1e6
#: A token later that takes this much longer is shown by itself.
_LONGER = 0.005


@dataclass(frozen=True)
class Phases:
    """A generation and its cache: `kv_bytes_per_token` of each token of a sequence (None: not
    known, 0: nothing), `free_bytes` of the GPU that nothing needs. `kv_bytes_per_sequence` is what
    a sequence of any length keeps where nothing is kept of a token: the state of a recurrent model,
    or the windows of its attention, which are full (0: not known, or it depends on the length)."""

    generation: Generation
    kv_bytes_per_token: float | None
    free_bytes: int
    kv_bytes_per_sequence: float = 0.0

    @property
    def ttft_us(self) -> float:
        """Microseconds to the first token."""
        return self.generation.ttft_us

    @property
    def tpot_us(self) -> tuple[float, float]:
        """Microseconds a token (of each sequence), at the first and the last recorded context."""
        found = self.generation
        return found.tpot_us(found.first_context), found.tpot_us(found.last_context)

    @property
    def tokens_per_s(self) -> float:
        """Tokens decoded a second, of all sequences, halfway between first and last context."""
        between_us = sum(self.tpot_us) / 2
        return self.generation.samples * _US_PER_S / between_us if between_us else 0.0

    @property
    def kv_tokens_free(self) -> int | None:
        """Tokens, of any sequence, whose cache still fits."""
        if not self.kv_bytes_per_token:
            return None
        return int(max(0, self.free_bytes) / self.kv_bytes_per_token)

    @property
    def sequences_free(self) -> int | None:
        """Sequences of the last recorded context whose cache still fits; None where an encoder's
        part of the cache would come to it."""
        if self.kv_bytes_per_sequence:
            return int(max(0, self.free_bytes) / self.kv_bytes_per_sequence)
        tokens = self.kv_tokens_free
        if tokens is None or self.generation.encode_us:
            return None
        return tokens // self.generation.last_context


def phase_lines(phases: Phases | None) -> Iterator[str]:
    """Lines of the summary; none where nothing is generated."""
    if phases is None:
        return
    found = phases.generation
    first_us, last_us = phases.tpot_us
    ttft = time_text(found.ttft_us)
    yield f"  prefill   {_prompt_text(found)}: {ttft} to the first token (TTFT)"
    later = ""
    if abs(last_us - first_us) > _LONGER * first_us:
        later = f", {time_text(last_us, like=first_us)} at {found.last_context:,}"
    yield (
        f"  decode    {time_text(first_us)} a token (TPOT) at {found.first_context:,} tokens of "
        f"context{later}; {phases.tokens_per_s:,.0f} tokens/s, "
        f"{phases.tokens_per_s / found.samples:,.1f} a sequence"
    )
    if found.drafted:
        yield f"            {_drafts_text(found)}"
    yield from _cache_lines(phases)


def _cache_lines(phases: Phases) -> Iterator[str]:
    tokens = phases.kv_tokens_free
    if phases.kv_bytes_per_sequence:
        yield (
            f"            cache of {bytes_text(round(phases.kv_bytes_per_sequence))} a sequence of "
            f"any length; in the {bytes_text(max(0, phases.free_bytes))} left fit "
            f"{phases.sequences_free:,} sequences more"
        )
    if phases.kv_bytes_per_token and tokens is not None:
        sequences = phases.sequences_free
        context = phases.generation.last_context
        more = "" if sequences is None else f", {sequences:,} sequences of {context:,}"
        yield (
            f"            cache of {_kib(phases.kv_bytes_per_token)} a token; in the "
            f"{bytes_text(max(0, phases.free_bytes))} left fit {tokens:,} tokens more{more}"
        )


def phase_figures(phases: Phases | None) -> Iterator[tuple[str, str]]:
    """Figures and what each is of; none where nothing is generated."""
    if phases is None:
        return
    found = phases.generation
    yield time_text(found.ttft_us), f"to the first token (TTFT); {_prompt_text(found)}"
    first_us, last_us = phases.tpot_us
    yield (
        time_text(last_us),
        f"a token (TPOT) at {found.last_context:,} tokens of context, "
        f"{time_text(first_us, like=last_us)} at {found.first_context:,}"
        + (f" {_drafts_text(found)}" if found.drafted else ""),
    )
    if phases.kv_bytes_per_token and phases.kv_tokens_free is not None:
        yield (
            f"{phases.kv_tokens_free:,}",
            (f"tokens more fit into the cache, of {_kib(phases.kv_bytes_per_token)} each"),
        )


def _drafts_text(found: Generation) -> str:
    """What a token's time rests on where tokens are drafted."""
    context = found.first_context
    round_us, best_us = (found.tpot_us(context, acceptance=share) for share in (0.0, 1.0))
    return (
        f"if {ASSUMED_ACCEPTANCE:.0%} of drafted tokens are accepted, which only values decide; "
        f"{time_text(round_us)} a round of {found.drafted:,} drafts: {time_text(best_us)} a token "
        "if all are, as long as the round if none is"
    )


def _prompt_text(found: Generation) -> str:
    prompt = f"{found.samples} x {found.prompt:,} tokens"
    if found.cached:
        prompt += f" after {found.cached:,} in the cache"
    if not found.encode_us:
        return prompt
    tokens = f" of {found.encoded:,} tokens" if found.encoded else ""
    return f"{prompt} after an encoder{tokens}"


def _kib(num_bytes: float) -> str:
    return f"{num_bytes / 2**10:,.1f} KiB"


def phases_json(phases: Phases | None) -> dict[str, Any]:
    """What `to_json` has of it: null, and no phases, where nothing is generated."""
    if phases is None:
        return {
            "phases": [],
            "ttft_us": None,
            "tpot_us": None,
            "tokens_per_s": None,
            "kv_bytes_per_token": None,
            "kv_tokens_free": None,
            "kv_bytes_per_sequence": None,
            "kv_sequences_free": None,
            "drafts": None,
        }
    found = phases.generation
    first_us, last_us = phases.tpot_us
    rows = [
        _row("prefill", 1, found.samples, found.prompt, found.ttft_us - found.encode_us),
        _row("decode", len(found.decodes), found.samples, 1 + found.drafted, _decode_us(phases)),
    ]
    if found.encode_us:
        rows.insert(0, _row("encode", 1, found.samples, found.encoded, found.encode_us))
    return {
        "phases": rows,
        "ttft_us": round(found.ttft_us, 3),
        "tpot_us": {
            "first": round(first_us, 3),
            "last": round(last_us, 3),
            "first_context": found.first_context,
            "last_context": found.last_context,
            "us_per_context": round(found.us_per_context / found.tokens_per_round(), 6),
        },
        "tokens_per_s": round(phases.tokens_per_s, 3),
        "kv_bytes_per_token": phases.kv_bytes_per_token,
        "kv_tokens_free": phases.kv_tokens_free,
        "kv_bytes_per_sequence": phases.kv_bytes_per_sequence or None,
        "kv_sequences_free": phases.sequences_free,
        "drafts": _drafts_json(found),
    }


def _drafts_json(found: Generation) -> dict[str, float] | None:
    """Tokens drafted a round, its microseconds at the first context, and what is assumed of it."""
    if not found.drafted:
        return None
    return {
        "tokens": found.drafted,
        "round_us": round(found.tpot_us(found.first_context, acceptance=0.0), 3),
        "assumed_acceptance": ASSUMED_ACCEPTANCE,
        "tokens_per_round": round(found.tokens_per_round(), 6),
    }


def _decode_us(phases: Phases) -> float:
    """Microseconds of a decode step, or of a round, halfway between first and last context."""
    found = phases.generation
    ends = (found.first_context, found.last_context)
    return sum(found.tpot_us(context, acceptance=0.0) for context in ends) / 2


def _row(phase: str, calls: int, samples: int, tokens: int, latency_us: float) -> dict[str, Any]:
    """A phase: how many calls of the model, of how many tokens of how many sequences, and the
    microseconds of one."""
    return {
        "phase": phase,
        "calls": calls,
        "samples": samples,
        "tokens": tokens,
        "latency_us": round(latency_us, 3),
    }

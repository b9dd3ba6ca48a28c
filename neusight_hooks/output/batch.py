"""What a step consumes: samples and tokens, as the user states or as the program was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from neusight.recording.recording import Batch, Recording, Step

#: Names in `Recording.options` of what the user says a step consumes.
SAMPLES_OPTION, TOKENS_OPTION = "samples_per_step", "tokens_per_step"

#: The name there of the rates that the program itself printed: JSON, a `Rate` for each unit.
RATES_OPTION = "printed_rates"

#: Units a second, and the line of output that says so.
Rate = tuple[float, str]

#: How far a printed rate may be from the forecast's before a note says so.
_ALIKE = 0.2

#: From here on rates have no decimals.
_WHOLE = 100.0


def batch_of(recording: Recording, step: Step) -> Batch:
    """What one step of a recording consumes: what the user states, else what was recorded."""
    return stated_batch(recording.options) or step.batch


def stated_batch(options: Mapping[str, str]) -> Batch:
    """What the user said a step consumes.

    >>> stated_batch({"tokens_per_step": "4096"}).tokens
    4096
    """
    samples, tokens = options.get(SAMPLES_OPTION), options.get(TOKENS_OPTION)
    return Batch(
        samples=None if samples is None else int(samples),
        tokens=None if tokens is None else int(tokens),
        known_by="as stated",
        source="" if samples is None and tokens is None else "stated",
    )


def rate_notes(options: Mapping[str, str], batch: Batch, whole: Batch, us: float) -> Iterator[str]:
    """A line for each rate that the program printed and that is not the forecast's, of this rank
    (`batch`) or of all (`whole`) in steps of so many microseconds.

    >>> printed = {RATES_OPTION: '{"tokens": [100.0, "100 tok/s"]}'}
    >>> batch = Batch(samples=1, tokens=1000)
    >>> [*rate_notes(printed, batch, batch, us=1e6)]
    ['the program printed "100 tok/s": 100 tokens/s, where the forecast has 1,000 tokens/s']
    """
    if us <= 0:
        return
    for unit, (rate, line) in _printed_rates(options).items():
        counts = {
            "samples": (batch.samples, whole.samples),
            "tokens": (batch.tokens, whole.tokens),
            "steps": (1,),
        }.get(unit, ())
        own = [count / us * 1e6 for count in counts if count is not None]
        if own and not any(abs(rate / each - 1) <= _ALIKE for each in own):
            yield (
                f'the program printed "{line}": {_words(rate)} {unit}/s, where the forecast has '
                f"{_words(own[0])} {unit}/s"
            )


def _words(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.3g}"


def _printed_rates(options: Mapping[str, str]) -> dict[str, Rate]:
    """What the option says; nothing where a file's is damaged."""
    try:
        found = json.loads(options.get(RATES_OPTION, "{}"))
        return {str(unit): (float(rate), str(line)) for unit, (rate, line) in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}

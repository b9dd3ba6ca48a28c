"""What a step consumes: samples and tokens, as the user states or as the program was recorded."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.recording.recording import Batch, BatchSource, Recording, Step

__all__ = ["SAMPLES_OPTION", "TOKENS_OPTION", "Batch", "BatchSource", "batch_of", "stated_batch"]

#: Names in `Recording.options` of what the user says a step consumes.
SAMPLES_OPTION, TOKENS_OPTION = "samples_per_step", "tokens_per_step"


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

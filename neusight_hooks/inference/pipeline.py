"""Models that a program calls in turn, as a diffusion pipeline does: encoder, denoiser, decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

from neusight.predictors.formatting import time_text
from neusight.recording.recording import ModelInput, OpCall, Step
from neusight.timeline.spans import Timeline

_US_PER_S = 1e6
#: Calls in a row that are a loop of a model.
_LEAST_LOOP = 3


@dataclass(frozen=True)
class ModelCalls:
    """Calls of one model in a row: how many, of how many samples, the microseconds of one."""

    module: str
    calls: int
    samples: int | None
    latency_us: float


@dataclass(frozen=True)
class Pipeline:
    """What the program does for one batch: its models in turn, one of them in a loop. `is_whole`:
    something follows the loop, or it all begins again; else the script may have been ended in it.
    """

    turns: tuple[ModelCalls, ...]
    is_whole: bool

    @property
    def loop(self) -> ModelCalls:
        """The model that is called most often."""
        return max(self.turns, key=lambda turn: turn.calls)

    @property
    def latency_us(self) -> float:
        """Of all calls together."""
        return sum(turn.calls * turn.latency_us for turn in self.turns)

    @property
    def samples_per_s(self) -> float | None:
        """Samples that leave the last model a second; None where they are not known."""
        samples = self.turns[-1].samples
        known = self.is_whole and samples and self.turns[-1] is not self.loop
        return samples * _US_PER_S / self.latency_us if known and samples else None


def pipeline_of(timeline: Timeline) -> Pipeline | None:
    """The models that were called in turn without training, the last whole round of them; None
    where there is one model alone, or none is called in a loop."""
    if any(span.replay.step.kind == "train" for span in timeline.steps):
        return None
    turns = list(_calls(timeline))
    rounds = list(_rounds(list(_joined(turns))))
    if not rounds:
        return None
    names = [[turn.module for turn in one] for one in rounds]
    found = next(one for one, own in zip(reversed(rounds), reversed(names), strict=True)
                 if own == names[0])  # fmt: skip
    pipeline = Pipeline(tuple(found), False)
    if len(set(names[0])) < 2 or pipeline.loop.calls < _LEAST_LOOP:
        return None
    return Pipeline(pipeline.turns, len(rounds) > 1 or pipeline.turns[-1] is not pipeline.loop)


def _calls(timeline: Timeline) -> Iterator[ModelCalls]:
    """Each call of a model, as often as its step was repeated: until its kernels have run, from the
    end of the one before (of the first: from its beginning)."""
    ends = [0, *accumulate((kernel.end_ns for kernel in timeline.kernels), max)]
    spans = timeline.inputs
    modules = [name for step in timeline.steps for name in _modules_of(step.replay.step)]
    before_ns: int | None = None
    for at, (span, module) in enumerate(zip(spans, modules, strict=True)):
        step = timeline.steps[span.step]
        following = spans[at + 1].num_kernels if at + 1 < len(spans) else step.last_kernel
        start_ns = span.start_ns if before_ns is None else before_ns
        end_ns = before_ns = max(start_ns, ends[following])
        if module:
            us = (end_ns - start_ns) / 1e3
            yield ModelCalls(module, step.represents, span.entry.samples or None, us)


def _modules_of(step: Step) -> Iterator[str]:
    """The outermost module of each call of a model in the step; "" where none is known."""
    entries = step.entries
    for at, entry in enumerate(entries):
        if isinstance(entry, ModelInput):
            own = takewhile(lambda item: not isinstance(item, ModelInput), entries[at + 1 :])
            names = (item.module for item in own if isinstance(item, OpCall) and item.module)
            yield next(names, "").partition(".")[0]


def _joined(turns: Sequence[ModelCalls]) -> Iterator[ModelCalls]:
    """Calls of one model in a row as one, with their mean time."""
    before: ModelCalls | None = None
    for turn in turns:
        if before is None or before.module != turn.module:
            if before is not None:
                yield before
            before = turn
            continue
        calls = before.calls + turn.calls
        us = (before.calls * before.latency_us + turn.calls * turn.latency_us) / calls
        before = ModelCalls(turn.module, calls, turn.samples, us)
    if before is not None:
        yield before


def _rounds(turns: Sequence[ModelCalls]) -> Iterator[list[ModelCalls]]:
    """From one call of the first model to its next."""
    own: list[ModelCalls] = []
    for turn in turns:
        if own and turn.module == own[0].module:
            yield own
            own = []
        own.append(turn)
    if own:
        yield own


def pipeline_lines(pipeline: Pipeline | None) -> Iterator[str]:
    """A line of the summary; none where models are not called in turn."""
    if pipeline is None:
        return
    parts = [
        f"{turn.module} {time_text(turn.latency_us)}"
        + (f" x {turn.calls:,}" if turn.calls > 1 else "")
        for turn in pipeline.turns
    ]
    words = ", ".join(parts)
    if not pipeline.is_whole:
        yield f"  in turn   {words} so far; --steps all records what follows"
        return
    rate = pipeline.samples_per_s
    samples = "" if rate is None else f", {rate:,.1f} samples/s of {pipeline.turns[-1].samples:,}"
    yield f"  in turn   {words}: {time_text(pipeline.latency_us)}{samples}"


def pipeline_json(pipeline: Pipeline | None) -> dict[str, Any] | None:
    """What `to_json` has of it."""
    if pipeline is None:
        return None
    rate = pipeline.samples_per_s
    return {
        "turns": [
            {
                "module": turn.module,
                "calls": turn.calls,
                "samples": turn.samples,
                "latency_us": round(turn.latency_us, 3),
            }
            for turn in pipeline.turns
        ],
        "is_whole": pipeline.is_whole,
        "latency_us": round(pipeline.latency_us, 3),
        "samples_per_s": None if rate is None else round(rate, 3),
    }

"""`neusight run --max-memory`: does it fit, where does the memory go, what would make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from neusight.advice.memory import MemoryAdvice, Remedy, memory_advice
from neusight.integrations.report.page.html_tables import pattern_of
from neusight.memory.placement import category_of
from neusight.memory.spread import MemoryVerdict, PeakRange
from neusight.predictors.errors import OptionError
from neusight.predictors.files import number_of
from neusight.predictors.formatting import bytes_text, time_text
from neusight.predictors.terminal_text import printable, printable_lines
from neusight.recording.recording import Alloc, TensorSpec

if TYPE_CHECKING:
    from neusight.forecast import Forecast

_GIB, _MIB = 2**30, 2**20

#: Less of a category is not shown.
_SHOWN_BYTES = _MIB // 10

#: Kinds of tensors, and changes, that are printed; JSON has all changes.
_TENSORS_SHOWN, _REMEDIES_SHOWN = 6, 6


def limit_of(text: str) -> int | None:
    """Bytes of `--max-memory`, given in GiB; None where nothing is given: all that the GPU has.

    >>> limit_of("1.5")
    1610612736
    """
    if not text:
        return None
    gib = number_of(text)
    if gib is None or not 0 < gib < math.inf:
        raise OptionError(f"--max-memory is {text!r}; it must be a number of GiB above 0, or alone")
    return int(gib * _GIB)


class TensorRow(NamedTuple):
    """Tensors alive at the peak that are alike: as often as a module is repeated."""

    num_tensors: int
    num_bytes: int
    shape: tuple[int, ...] | None
    dtype: str
    category: str
    op: str
    module: str
    phase: str
    line: str

    @property
    def words(self) -> str:
        """The tensor and where it comes from."""
        shape = "" if self.shape is None else f"{self.dtype} {list(self.shape)} "
        source = self.module or "(no module)"
        return f"{shape}{self.op}, {source}, {self.phase}{f', {self.line}' if self.line else ''}"


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a forecast judged by a limit in bytes (None: all that the GPU has)."""

    forecast: Forecast
    limit_bytes: int | None = None

    @cached_property
    def advice(self) -> MemoryAdvice:
        """What would make it fit."""
        forecast = self.forecast
        return memory_advice(
            forecast.recording,
            forecast.gpu,
            limit_bytes=self.limit_bytes,
            latency_of=lambda recording: forecast.of(recording).step_latency_us.median,
        )

    @property
    def fits(self) -> bool:
        """The verdict."""
        return self.advice.fits

    @property
    def needed_range(self) -> PeakRange:
        """Between what the smallest memory lies that it fits into."""
        advice, memory = self.advice, self.advice.memory
        less = memory.total_bytes - memory.needed_range.low
        more = memory.needed_range.high - memory.total_bytes
        return PeakRange(max(0, advice.needed_bytes - less), advice.needed_bytes + more)

    @property
    def memory_verdict(self) -> MemoryVerdict:
        """The verdict with what the peak may be off by."""
        needed, limit = self.needed_range, self.advice.limit_bytes
        if needed.low > limit:
            return "does not fit"
        return "fits" if needed.high <= limit else "close"

    @property
    def verdict(self) -> str:
        """The verdict in a line."""
        advice, needed = self.advice, self.needed_range
        words = {"fits": "fits into", "does not fit": "does not fit into", "close": "close to"}
        return (
            f"{printable(self.forecast.gpu.name)}: {words[self.memory_verdict]} "
            f"{bytes_text(advice.limit_bytes)}, needs {bytes_text(advice.needed_bytes)} "
            f"({bytes_text(needed.low)} to {bytes_text(needed.high)})"
        )

    @cached_property
    def tensors(self) -> list[TensorRow]:
        """What is alive at the peak, alike tensors added up, largest first."""
        rows: dict[tuple[Any, ...], list[int]] = {}
        for alloc, spec in self.advice.tensors:
            row = rows.setdefault(_alike(alloc, spec), [0, 0])
            row[0] += 1
            row[1] += alloc.num_bytes
        found = [TensorRow(count, total, *key) for key, (count, total) in rows.items()]
        return sorted(found, key=lambda row: (-row.num_bytes, row.op, row.module, row.line))

    def __str__(self) -> str:
        return printable_lines([self.verdict, *self._where(), *self._batch(), *self._remedies()])

    def _where(self) -> Iterator[str]:
        memory = self.advice.memory
        peak = memory.peak_event
        yield (
            f"  needs     {bytes_text(memory.peak_allocated)} allocated, "
            f"{bytes_text(memory.peak_reserved)} reserved if nothing limits it, "
            f"{bytes_text(memory.context_bytes)} context"
        )
        if peak is None:
            return
        source = peak.source
        line = f", {source.stack[0]}" if source.stack else ""
        yield (
            f"  peak      step {peak.step}, {source.op}, {source.module or '(no module)'}, "
            f"{source.phase}{line}"
        )
        steps = memory.first_and_steady
        if steps is not None:
            yield (
                f"            first step {bytes_text(steps[0].peak_allocated)}, later ones "
                f"{bytes_text(steps[1].peak_allocated)}"
            )
        held = sorted(memory.by_category.items(), key=lambda item: -item[1])
        words = [
            f"{name.replace('_', ' ')} {bytes_text(size)}"
            for name, size in held
            if size >= _SHOWN_BYTES
        ]
        yield f"  alive     {', '.join(words) or 'next to nothing'}"
        for number, row in enumerate(self.tensors[:_TENSORS_SHOWN]):
            label = "largest" if number == 0 else ""
            times = f"{row.num_tensors} x " if row.num_tensors > 1 else ""
            size = f"{times}{bytes_text(row.num_bytes // row.num_tensors)}"
            yield f"  {label:<9} {size:>17}  {row.words}"

    def _batch(self) -> Iterator[str]:
        batch = self.advice.batch
        if batch is None:
            return
        if batch.batch == 0:
            words = f"not even 1 would fit (now {batch.recorded})"
        elif batch.batch < batch.recorded:
            words = f"{batch.batch} would fit (now {batch.recorded})"
        else:
            words = f"up to {batch.batch} would fit (now {batch.recorded})"
        yield f"  batch     {words}"

    def _remedies(self) -> Iterator[str]:
        remedies = self.advice.remedies[:_REMEDIES_SHOWN]
        if not remedies:
            return
        yield f"  {'what would save memory' if self.fits else 'what would make it fit'}"
        width = max(len(remedy.what) for remedy in remedies)
        for remedy in remedies:
            yield f"    {remedy.what:<{width}}  {self._effect(remedy)}"

    def _effect(self, remedy: Remedy) -> str:
        words = [f"{bytes_text(remedy.total_bytes):>10}", f"saves {bytes_text(remedy.saved_bytes)}"]
        if not self.fits:
            words.insert(1, "fits" if remedy.fits else "too much still")
        if remedy.added_us is not None:
            share = remedy.added_us / (self.forecast.step_latency_us.median or 1.0)
            words.append(f"{time_text(remedy.added_us, signed=True)} a step ({share:+.0%})")
        if remedy.needs:
            words.append(remedy.needs)
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, the same for the same script byte for byte."""
        advice = self.advice
        return {
            "gpu": self.forecast.gpu.name,
            "limit_bytes": advice.limit_bytes,
            "fits": advice.fits,
            "memory_verdict": self.memory_verdict,
            "needed_bytes": advice.needed_bytes,
            "needed_range_bytes": self.needed_range._asdict(),
            "by_category": advice.memory.by_category,
            "tensors": [row._asdict() for row in self.tensors[:_TENSORS_SHOWN]],
            "largest_batch": None if advice.batch is None else advice.batch._asdict(),
            "remedies": [asdict(remedy) for remedy in advice.remedies],
        }


def _alike(alloc: Alloc, spec: TensorSpec | None) -> tuple[Any, ...]:
    """What rows of the table are distinguished by: modules that a model repeats are one."""
    return (
        None if spec is None else spec.shape,
        "" if spec is None else spec.dtype,
        category_of(alloc),
        alloc.op,
        pattern_of(alloc.module),
        alloc.phase,
        alloc.stack[0] if alloc.stack else "",
    )

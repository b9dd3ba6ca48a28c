"""Reads the rates (samples/s, tok/s, it/s) that a program prints under the forecast's clock."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neusight.output.batch import RATES_OPTION, Rate
from neusight.predictors.terminal_text import printable

if TYPE_CHECKING:
    from neusight.recording.recording import Recording
    from neusight.session import Session

#: Steps, the setup among them, after which a rate that is printed is one of steps.
_FIRST_STEPS = 2

#: How far two rates of steps in a row may be apart: a progress bar averages over the first step,
#: which takes longer, until it has shown many.
_SETTLED = 0.2

#: Characters of a line that are kept.
_LINE_LENGTH = 80

_UNITS = {
    "samples": ("sample", "samples", "example", "examples", "img", "imgs", "image", "images"),
    "tokens": ("tok", "toks", "token", "tokens"),
    "steps": ("it", "its", "iter", "iters", "iteration", "iterations", "step", "steps"),
}
_UNIT_OF = {name: unit for unit, names in _UNITS.items() for name in names}

_NUMBER = r"(?P<number>\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<factor>[kM]?)"
_NAME = rf"(?P<unit>{'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})"
_PER_SECOND = rf"{_NAME}\s*(?:/\s*|\s+per\s+|_per_)s(?:ec(?:ond)?)?\b"
#: "1,234 tok/s", "1.2k samples/sec"; "tokens/sec: 1234", "tokens_per_second=1234"; "SPS: 1234".
_RATES = (
    re.compile(rf"(?<![\w.]){_NUMBER}\s*{_PER_SECOND}", re.IGNORECASE),
    re.compile(rf"\b{_PER_SECOND}\s*[:=]?\s*{_NUMBER}(?!\s*\w)", re.IGNORECASE),
    re.compile(rf"\b(?P<unit>SPS)\b\s*[:=]?\s*{_NUMBER}"),
)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6}


def rates_in(line: str) -> dict[str, float]:
    """The rates that a line of output says, by "samples", "tokens" or "steps".

    >>> rates_in("iter 10: loss 4.1, 12.5k tok/s, 3.05it/s")
    {'tokens': 12500.0, 'steps': 3.05}
    >>> rates_in("SPS: 1,024"), rates_in("saved 12 images")
    ({'samples': 1024.0}, {})
    """
    found: dict[str, float] = {}
    for pattern in _RATES:
        for match in pattern.finditer(line):
            unit = _UNIT_OF.get(match["unit"].lower(), "samples")
            number = float(match["number"].replace(",", "")) * _FACTORS[match["factor"].lower()]
            found.setdefault(unit, number)
    return found


class PrintedRates:
    """The last rate of each unit that a program prints once its steps repeat."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: dict[str, Rate] = {}
        self._begun: dict[str, str] = {}
        self._step_rate = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads what is written to standard output and error inside the block."""
        with ExitStack() as undo:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None:  # closed by the shell: >&-
                    self._read(undo, name, stream)
            yield

    def added_to(self, recording: Recording) -> Recording:
        """The recording with the rates that were read."""
        if not self._last:
            return recording
        text = json.dumps(dict(sorted(self._last.items())))
        return replace(recording, options={**recording.options, RATES_OPTION: text})

    def _read(self, undo: ExitStack, name: str, stream: Any) -> None:
        write: Callable[[str], int] = stream.write

        def read_and_write(text: str) -> int:
            if isinstance(text, str):
                self._take(name, text)
            return write(text)

        is_own = "write" in getattr(stream, "__dict__", ())
        try:
            stream.write = read_and_write
        except AttributeError:  # a stream that takes no attributes
            return
        if is_own:
            undo.callback(setattr, stream, "write", write)
        else:
            undo.callback(delattr, stream, "write")

    def _take(self, name: str, text: str) -> None:
        *lines, begun = (self._begun.get(name, "") + text).replace("\r", "\n").split("\n")
        self._begun[name] = begun[-1000:]
        for line in lines:
            is_steady = self._session.progress[1] >= _FIRST_STEPS
            if ("/" in line or "per" in line or "SPS" in line) and is_steady:
                self._keep(rates_in(line), printable(line.strip())[:_LINE_LENGTH])

    def _keep(self, rates: dict[str, float], line: str) -> None:
        for unit, rate in rates.items():
            before = self._step_rate
            if unit == "steps":
                self._step_rate = rate
            if unit != "steps" or (before and abs(rate / before - 1) <= _SETTLED):
                self._last[unit] = (rate, line)

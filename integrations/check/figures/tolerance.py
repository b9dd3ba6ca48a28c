"""How much worse than its baseline a figure may be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from neusight.integrations.check.figures.metrics import KEPT_METRICS
from neusight.predictors.errors import OptionError
from neusight.predictors.files import is_number, shown


@dataclass(frozen=True)
class Tolerance:
    """How much worse a figure may be: a share of the baseline's, or so much in its own unit."""

    share: float = 0.0
    absolute: float = 0.0

    def allowed(self, before: float) -> float:
        """The most by which the figure may grow."""
        return max(self.share * before, self.absolute)

    def words(self, unit: str) -> str:
        """As a setting would say it."""
        if self.share or not self.absolute:
            return f"{self.share * 100:g} %"
        if unit == "bytes":
            return f"{self.absolute / 2**20:g} MiB"
        return f"{self.absolute:g} {unit}".strip()


#: A forecast is exact: only negligible changes are ignored. Memory is counted in bytes, for a
#: megabyte more is a change of the program whatever the size of the rest; so is another wait.
DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "step_latency": Tolerance(share=0.005),
    "gpu_busy": Tolerance(share=0.005),
    "peak_memory": Tolerance(absolute=2**19),
    "peak_reserved": Tolerance(share=0.05, absolute=20 * 2**20),  # grows by whole segments
    "num_kernels": Tolerance(share=0.005),
    "num_synchronizations": Tolerance(),
    "flops": Tolerance(share=0.005),
    "communication": Tolerance(share=0.005),
    "ttft": Tolerance(share=0.005),
    "tpot": Tolerance(share=0.005),
    "num_graph_breaks": Tolerance(),
    "num_recompiles": Tolerance(),
}

#: The tolerance of the throughput, whatever it counts; not stated, it is that of the latency.
THROUGHPUT = "throughput"

_UNITS: dict[str, dict[str, float]] = {
    "us": {"us": 1, "µs": 1, "ms": 1e3, "s": 1e6},
    "bytes": {
        "b": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9,
        "kib": 2**10, "mib": 2**20, "gib": 2**30,
    },
    "flops": {"flop": 1, "flops": 1, "gflop": 1e9, "gflops": 1e9, "tflop": 1e12, "tflops": 1e12},
    "/s": {"/s": 1, "samples/s": 1, "tokens/s": 1},
    "": {"": 1},
}  # fmt: skip

_UNIT_OF = {metric.name: metric.unit for metric in KEPT_METRICS}

METRIC_OF = {name: full for name in DEFAULT_TOLERANCES for full in _UNIT_OF
              if full.startswith(name)}  # fmt: skip

_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9]*)", re.IGNORECASE)


def parse_tolerance(name: str, text: object) -> Tolerance:
    """A tolerance from "0.5 %", "1 MiB", "50 us" or 3; OptionError says what is wrong.

    >>> parse_tolerance("peak_memory", "1 MiB")
    Tolerance(share=0.0, absolute=1048576.0)
    """
    if name not in (*DEFAULT_TOLERANCES, THROUGHPUT):
        known = ", ".join([*DEFAULT_TOLERANCES, THROUGHPUT])
        raise OptionError(f"There is no tolerance {shown(name)}; known: {known}.")
    units = _UNITS["/s" if name == THROUGHPUT else _UNIT_OF[METRIC_OF[name]]]
    words = str(text).strip() if isinstance(text, str) or is_number(text) else ""
    match = _AMOUNT.fullmatch(words)
    amount = float(match[1]) if match is not None else math.nan
    unit = match[2].lower() if match is not None else ""
    if match is not None and math.isfinite(amount):
        if unit == "%":
            return Tolerance(share=amount / 100)
        if unit in units:
            return Tolerance(absolute=amount * units[unit])
        if amount == 0 and not unit:
            return Tolerance()
    named = ", ".join(f'"1 {unit}"' for unit in units) if "" not in units else "3"
    raise OptionError(
        f'The tolerance of {name} is {shown(text)}; it must be a number such as "0.5 %" or {named}.'
    )


def parse_tolerances(settings: Mapping[str, object]) -> dict[str, Tolerance]:
    """All tolerances, the defaults where nothing is said; by short name ("peak_memory")."""
    given = {name: parse_tolerance(name, text) for name, text in settings.items()}
    return {**DEFAULT_TOLERANCES, **given}

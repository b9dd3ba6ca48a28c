"""Operators of profiled programs against their kernels' durations: data/profiled_kernels.

    python benchmarks/profiled_kernels.py             compares, exit code 1 where a group got worse
    python benchmarks/profiled_kernels.py --table     all groups, with bias and intervals
    python benchmarks/profiled_kernels.py --update    stores the scores (ratchet.py)

By class of the operator's longest kernel, and by program. amd.py weighs the same by how often each
ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ratchet

from neusight.integrations.profiles.profiled_kernels import ProfiledCall, read_profiled
from neusight.predictors.kernel import Kernel
from neusight.predictors.tiled import Tiled

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "profiled_kernels"

#: The release that ran each program (README there); the others, which have fused RMS norms and
#: vectors of 16 bytes, ran newer ones.
TORCH = dict.fromkeys(
    ("bert-small", "owlv2-large", "resnet-training", "timesformer-base", "vit-base"), "2.6"
)


def rows() -> Iterator[ratchet.Row]:
    """Each operator beside its price."""
    if not DATA.exists():
        return
    chosen = Tiled(sustained=False)
    for call in read_profiled(DATA, torch_versions=TORCH)[0]:
        yield from _rows_of(call, chosen)


class Priced(NamedTuple):
    """A call's longest kernel, its forecast, µs, and whether what was measured is in the range."""

    longest: Kernel
    forecast_us: float
    is_inside: bool


def priced(call: ProfiledCall, chosen: Tiled) -> Priced:
    """The price of a call on its own GPU."""
    estimates = chosen.predict(call.kernels, call.gpu)
    longest = max(range(len(estimates)), key=lambda index: estimates[index].latency_us)
    time_us, low_us, high_us = (
        sum(getattr(item, name) for item in estimates)
        for name in ("latency_us", "low_us", "high_us")
    )
    return Priced(call.kernels[longest], time_us, low_us <= call.measured_us <= high_us)


def _rows_of(call: ProfiledCall, chosen: Tiled) -> Iterator[ratchet.Row]:
    kernel, forecast_us, is_inside = priced(call, chosen)
    for what in (kernel.kernel_class.value, f"program {call.program}"):
        yield ratchet.Row(
            what, call.gpu_label, kernel.dtype, error=forecast_us / call.measured_us - 1.0,
            is_inside=is_inside,
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(ratchet.run("profiled_kernels", __doc__, DATA, rows))

"""How near a profile of one vendor's GPU comes to another's: python benchmarks/vendors.py [DATA].

Operators of data/profiled_kernels that H100 and MI300X both ran are carried from one to the other
by the ratio of prices, and forecast without any profile; both are laid beside what was measured
there, by class: median and 80 % quantile of |carried / measured - 1|. `neusight carry` takes what
is nearer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from profiled_kernels import TORCH

from neusight.integrations.profiles.profiled_kernels import ProfiledCall, read_profiled
from neusight.predictors.kernel import Kernel
from neusight.predictors.registry import find_predictor

DATA = Path(__file__).parents[2] / "shared" / "data" / "profiled_kernels"


class Carried(NamedTuple):
    """An operator on one GPU: what a profile of the other gives, what is forecast, µs measured."""

    kind: str
    by_ratio_us: float
    forecast_us: float
    measured_us: float


def carried(calls: Sequence[ProfiledCall], *, to: str) -> Iterator[Carried]:
    """The operators that GPUs of both vendors ran, on that of vendor `to`."""
    pairs: dict[tuple[str, ...], dict[str, ProfiledCall]] = {}
    for call in calls:
        op = call.op.replace("cudnn_", "").replace("miopen_", "")
        key = (call.program, op, max(call.kernels, key=_work).key)
        pairs.setdefault(key, {}).setdefault(call.gpu.vendor, call)
    for found in pairs.values():
        if len(found) > 1:
            here = found.pop(to)
            (there,) = found.values()
            price_us = _price_us(here)
            yield Carried(
                kind=max(here.kernels, key=_work).kernel_class.value,
                by_ratio_us=there.measured_us * price_us / _price_us(there),
                forecast_us=price_us,
                measured_us=here.measured_us,
            )


def _work(kernel: Kernel) -> tuple[float, float]:
    return kernel.flops, kernel.num_bytes


def _price_us(call: ProfiledCall) -> float:
    estimates = find_predictor("tiled").predict(call.kernels, call.gpu)
    return sum(estimate.latency_us for estimate in estimates)


def _errors(us: Sequence[float], measured_us: Sequence[float]) -> str:
    errors = np.abs(np.array(us) / np.array(measured_us) - 1.0)
    return f"{np.median(errors):4.0%} {np.quantile(errors, 0.8):4.0%}"


def main() -> int:
    """Prints a line for each class and direction."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if not data.exists():
        print(f"skipped: there are no measured tables at {data}")
        return 0
    calls, _ = read_profiled(data, torch_versions=TORCH)
    print(f"{'class':<14} {'to':<8} {'calls':>5}  ratio      forecast   (median, 80 %)")
    for vendor in ("amd", "nvidia"):
        found = list(carried(calls, to=vendor))
        for kind in ("all", *sorted({item.kind for item in found})):
            own = [item for item in found if kind in ("all", item.kind)]
            measured_us = [item.measured_us for item in own]
            ratio = _errors([item.by_ratio_us for item in own], measured_us)
            forecast = _errors([item.forecast_us for item in own], measured_us)
            print(f"{kind:<14} {vendor:<8} {len(own):>5}  {ratio}  {forecast}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

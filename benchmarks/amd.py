"""MI300X, kernel by kernel: python benchmarks/amd.py [DATA] [--csv FILE] [--burst].

Operator calls of the programs of data/profiled_kernels, called again in a forecast and priced,
beside what their kernels took there. By class of the operator's longest kernel, and apart for the
programs on which constants of AMD GPUs rest in part (ResNet's training, Stable Diffusion 3.5 and
normalization layers) and those of another machine (ViT, BERT, OWLv2, TimeSformer). The GPU is taken
to be at work for long, as it is in these profiles; `--burst` takes it to be cool.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from profiled_kernels import TORCH, Priced, priced
from tables import write_table

from neusight.integrations.profiles.profiled_kernels import ProfiledCall, read_profiled
from neusight.predictors.tiled import Tiled

DATA = Path(__file__).parents[2] / "shared" / "data" / "profiled_kernels"

#: Ends the label of the machine whose programs chose few constants, a virtual function of the GPU.
OTHER_MACHINE = " VF"


#: An operator call and its price.
Scored = tuple[ProfiledCall, Priced]


def rows_of(calls: Iterable[ProfiledCall], chosen: Tiled) -> list[dict[str, object]]:
    """Of the calls that AMD GPUs ran a row for each class and machine, and for each program."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for call in calls:
        if call.gpu.vendor == "amd":
            price = priced(call, chosen)
            machine = "other" if call.gpu_label.endswith(OTHER_MACHINE) else "first"
            kind = price.longest.kernel_class.value
            groups[f"class, {machine} machine", kind].append((call, price))
            groups[f"program, {machine} machine", call.program].append((call, price))
    return [_row(*name, own) for name, own in sorted(groups.items())]


def _row(group: str, name: str, own: Sequence[Scored]) -> dict[str, object]:
    measured = sum(call.count * call.measured_us for call, _ in own) / 1e3
    forecast = sum(call.count * price.forecast_us for call, price in own) / 1e3
    errors = [abs(price.forecast_us / call.measured_us - 1.0) for call, price in own]
    return {
        "group": group,
        "name": name,
        "calls": len(own),
        "measured_ms": round(measured, 3),
        "forecast_ms": round(forecast, 3),
        "sum_error_percent": round(100 * (forecast / measured - 1.0), 1),
        "median_error_percent": round(100 * float(np.median(errors)), 1),
        "mean_error_percent": round(100 * float(np.mean(errors)), 1),
        "in_80_percent": round(100 * float(np.mean([price.is_inside for _, price in own]))),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    parser.add_argument("--csv", type=Path, help="write the rows there")
    parser.add_argument("--burst", action="store_true", help="at the clocks of a cool GPU")
    options = parser.parse_args()
    if not options.data.exists():
        print(f"skipped: there are no measured tables at {options.data}")
        return 0
    calls, _ = read_profiled(options.data, torch_versions=TORCH)
    rows = rows_of(calls, Tiled(sustained=not options.burst))
    for row in rows:
        print("  ".join(f"{value!s:<24}" if isinstance(value, str) else f"{value:>9}"
                        for value in row.values()))  # fmt: skip
    if options.csv:
        write_table(options.csv, rows[0], (row.values() for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

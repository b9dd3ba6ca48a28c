"""What the shipped networks make of kernels of every class.

The table is small enough to review; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it.
"""

from __future__ import annotations

from priced_kernels import TABLES, estimates, label

from neusight.predictors.predictor import Estimate
from neusight.predictors.tiled import Tiled
from places import require_golden

#: GPUs that the networks were trained on, and ones that they carry over to.
GPUS = ("P100", "T4", "A100", "RTX-4090", "L40S", "H100", "B200", "MI210", "MI300X")


def test_the_networks_correct_kernels_as_the_golden_table_has_them() -> None:
    """Nanoseconds, the interval's half width, and what priced it: trained (T beyond what it was
    trained on); nothing where the physics alone did."""
    kernels = [kernel for table in TABLES for kernel in table()]
    found = {name: estimates(Tiled(), kernels, name) for name in GPUS}
    lines = ["".join(f"{name:>17}" for name in GPUS)]
    for kernel in kernels:
        cells = [price(of_gpu.get(kernel)) for of_gpu in found.values()]
        if any(cells):
            lines.append("".join(f"{cell or '-':>17}" for cell in cells) + f"  {label(kernel)}")

    require_golden("learned_prices.txt", lines)


def price(found: Estimate | None) -> str:
    if found is None or found.origin != "trained":
        return ""
    spread = found.high_us / found.latency_us - 1
    return f"{found.latency_us * 1000:.0f} {spread:.2f} {'t' if found.in_range else 'T'}"

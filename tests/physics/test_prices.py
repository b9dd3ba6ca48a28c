"""What the physics alone makes of kernels of every class, on GPUs of every generation.

The tables are small enough to review; NEUSIGHT_UPDATE_GOLDEN=1 rewrites them. A change of a
constant or a formula shows which kernels it moves, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from default_values import numbers_by_default
from priced_kernels import TABLES, estimates, label

from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.predictors.tiled import Tiled
from places import require_golden

#: GPUs of the tables, a column each: every architecture that a formula names.
GPUS = (
    "P100", "V100", "T4", "A100", "RTX-4090", "H100", "B200", "B300", "RTX-5090",
    "RX-7900-XTX", "MI100", "MI300X",
)  # fmt: skip
#: Those of which the launch is shown too, the last in a burst.
LAUNCHED = ("A100", "H100", "MI300X")


@pytest.mark.parametrize("kernels", TABLES)
def test_the_physics_prices_kernels_as_the_golden_table_has_them(
    kernels: Callable[[], Iterator[Kernel]],
) -> None:
    """A kernel a line, a GPU a column: nanoseconds."""
    rows = list(kernels())
    found = [estimates(Tiled(correction=None), rows, name) for name in GPUS]
    lines = ["".join(f"{name:>12}" for name in GPUS)]
    for kernel in rows:
        cells = (f"{of[kernel].latency_us * 1000:.0f}" if kernel in of else "-" for of in found)
        lines.append("".join(f"{cell:>12}" for cell in cells) + f"  {label(kernel)}")

    require_golden(f"physics_{kernels.__name__}.txt", lines)


def test_the_physics_launches_kernels_as_the_golden_table_has_them() -> None:
    """A kernel a line, a GPU a column: half width of the interval, bound, split, CTAs, threads,
    waves and the share of the peak; MI300X in a burst, with its nanoseconds."""
    rows = [kernel for table in TABLES for kernel in table()]
    found = [
        estimates(Tiled(correction=None, sustained=name != "MI300X"), rows, name)
        for name in LAUNCHED
    ]
    lines = []
    for index, kernel in enumerate(rows):
        if index % 4 == 0 or kernel.kernel_class in (KernelClass.ATTENTION, KernelClass.GEMM):
            cells = (launch(of[kernel]) if kernel in of else "-" for of in found)
            lines.append("".join(f"{cell:<38}" for cell in cells) + label(kernel))

    require_golden("physics_launches.txt", lines)


def launch(found: Estimate) -> str:
    spread = found.high_us / found.latency_us - 1
    words = (
        f"{spread:.2f}", found.bound[:2], f"{found.split_k}", f"{found.num_ctas}x"
        f"{found.threads_per_cta}", f"{found.num_waves:.2f}", f"{found.utilization:.2f}",
        f"{found.latency_us:.1f}" if found.predictor == "tiled_burst" else "",
    )  # fmt: skip
    return " ".join(words)


def test_what_is_not_stated_is_as_the_golden_table_has_it() -> None:
    """The numbers of functions and values by default."""
    require_golden("defaults_physics.txt", numbers_by_default("neusight.predictors.physics"))

"""`neusight gpus`: lists the GPUs, or shows one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.predictors.terminal_text import printable

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "list the GPUs, or show one"
DESCRIPTION = ""

_GIB = 2**30


def add_arguments(gpus: argparse.ArgumentParser) -> None:
    """The options of `neusight gpus`."""
    gpus.add_argument("name", nargs="?", help="a GPU")


def run(options: argparse.Namespace) -> int:
    """Prints the table, or all that is known of one GPU."""
    from neusight.predictors.gpu import find_gpu, gpus

    if options.name is not None:
        found = find_gpu(options.name)
        for name, value in found.to_json().items():
            print(printable(f"{name:<38} {value}"))
        print(_what_large_work_reaches(found))
        return ExitCode.OK
    families: dict[tuple[str, str], list[GPU]] = {}
    for item in sorted(map(find_gpu, gpus()), key=_newest_first):
        families.setdefault((item.vendor, _family(item)), []).append(item)
    print(f"{'name':<28} {'memory':>8} {'GB/s':>7} {'watts':>6} {'bf16 TFLOP/s':>13} {'fp32':>7}")
    for (_, family), members in families.items():
        print(f"\n{printable(family)}")
        for item in members:
            print(_row(item))
    return ExitCode.OK


def _what_large_work_reaches(gpu: GPU) -> str:
    """Large products in a burst and for long, and streaming: what a program can hope for."""
    from neusight.predictors.physics.gemm import utilization_of

    lines = ["", f"{'large products, TFLOP/s':<38} {'peak':>8} {'burst':>8} {'sustained':>10}"]
    for unit in ("fp8", "bf16", "fp16", "tf32", "fp32"):
        if unit not in gpu.peak_tflops:
            continue
        peak = gpu.peak_flops(unit, matrix=True) / 1e12
        burst, lasting = (
            peak * min(1.0, utilization_of(gpu, unit, sustained=sustained))
            for sustained in (False, True)
        )
        is_known = gpu.gemm_utilization if gpu.has_matrix_unit(unit) else gpu.fp32_gemm_utilization
        origin = "" if is_known else "   by the power limit"
        lines.append(f"  {unit:<36} {peak:>8.1f} {burst:>8.1f} {lasting:>10.1f}{origin}")
    reached = gpu.bandwidth_gbps * gpu.bandwidth_utilization
    lines.append(f"{'large streams, GB/s':<38} {gpu.bandwidth_gbps:>8.0f} {reached:>8.0f}")
    return "\n".join(lines)


def _newest_first(item: GPU) -> tuple[bool, int, int, str]:
    """NVIDIA's before AMD's, the highest compute capability first, names in their order."""
    major, minor = item.compute_capability
    return item.vendor == "amd", -major, -minor, item.name


def _family(item: GPU) -> str:
    """What the GPUs below have in common: "Ampere (8.6)"."""
    major, minor = item.compute_capability
    return item.architecture if item.vendor == "amd" else f"{item.architecture} ({major}.{minor})"


def _row(item: GPU) -> str:
    peak = item.peak_tflops.get("bf16")
    return (
        f"  {printable(item.name):<26} {item.memory_bytes / _GIB:>6.0f} G "
        f"{item.bandwidth_gbps:>7.0f} {item.tdp_w:>6.0f} {f'{peak:.0f}' if peak else '-':>13} "
        f"{item.peak_tflops['fp32']:>7.1f}"
    )

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
        for name, value in find_gpu(options.name).to_json().items():
            print(printable(f"{name:<38} {value}"))
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

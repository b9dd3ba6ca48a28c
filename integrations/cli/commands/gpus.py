"""`neusight gpus`: lists the GPUs, or shows one."""

from __future__ import annotations

import argparse

from neusight.exit_codes import ExitCode
from neusight.predictors.terminal_text import printable

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
    print(f"{'name':<28} {'architecture':<18} {'memory':>8} {'GB/s':>7} {'bf16 TFLOP/s':>13}")
    for name in gpus():
        item = find_gpu(name)
        peak = item.peak_tflops.get("bf16")
        print(
            f"{printable(name):<28} {printable(item.architecture):<18} "
            f"{item.memory_bytes / _GIB:>6.0f} G {item.bandwidth_gbps:>7.0f} "
            f"{f'{peak:.0f}' if peak else '-':>13}"
        )
    return ExitCode.OK

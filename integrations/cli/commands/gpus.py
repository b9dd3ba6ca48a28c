"""`neusight gpus`: lists the GPUs, or shows one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.predictors.terminal_text import fitted, printable, printable_lines

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

HELP = "list the GPUs, or show one"
DESCRIPTION = ""

_GIB = 2**30


def add_arguments(gpus: argparse.ArgumentParser) -> None:
    """The options of `neusight gpus`."""
    gpus.add_argument("name", nargs="?", help="a GPU")
    gpus.add_argument("--topologies", action="store_true",
                      help="list the systems that --topology knows instead")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Prints the table of all GPUs, or every field of one."""
    from neusight.predictors.gpu import find_gpu, gpus, known_figures

    if options.topologies:
        print(fitted(printable_lines(_topology_lines()), sys.stdout))
        return ExitCode.OK
    if options.name is not None:
        found = find_gpu(options.name)
        facts = [printable(f"{name:<38} {value}") for name, value in known_figures(found).items()]
        print(fitted("\n".join([*facts, _what_large_work_reaches(found)]), sys.stdout))
        return ExitCode.OK
    families: dict[tuple[str, str], list[GPU]] = {}
    for item in sorted(map(find_gpu, gpus()), key=_newest_first):
        major, minor = item.compute_capability
        version = "" if item.vendor == "amd" else f" ({major}.{minor})"
        families.setdefault((item.vendor, f"{item.architecture}{version}"), []).append(item)
    print(f"{'':<44}{'peak TFLOP/s':>14}")
    print(f"{'name':<27}{'memory':>6}{'GB/s':>6}{'watts':>6}{'bf16':>6}{'fp32':>7}")
    for (_, family), members in families.items():
        print(f"\n{printable(family)}")
        for item in members:
            print(_row(item))
    return ExitCode.OK


def _topology_lines() -> list[str]:
    """A line for each system: its node, what joins GPUs there, and its network."""
    from neusight.predictors.clusters.named import find_topology, topologies

    lines = [f"{'name':<14} {'GPUs a node':>11}  {'joined by':<34} {'network cards of a node':<24}"]
    for name in topologies():
        found = find_topology(name)
        links = ", ".join(
            f"{level.kind} of {level.ranks} ({level.gbps:g} GB/s)" for level in found.inside[-1:]
        )
        network = found.network
        cards = "none" if network is None else f"{network.nics_per_node} x {network.gbps:g} GB/s"
        lines.append(f"{name:<14} {found.gpus_per_node:>11}  {links:<34} {cards:<24}")
    return [*lines, "", "A file of your own: neusight run --topology cluster.json (GUIDE.md)."]


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
    """NVIDIA before AMD, then by compute capability in descending order, then by name."""
    major, minor = item.compute_capability
    return item.vendor == "amd", -major, -minor, item.name


def _row(item: GPU) -> str:
    peak = item.peak_tflops.get("bf16")
    return (
        f"  {printable(item.name):<25}{item.memory_bytes / _GIB:>4.0f} G"
        f"{item.bandwidth_gbps:>6.0f}{item.tdp_w:>6.0f}{f'{peak:.0f}' if peak else '-':>6}"
        f"{item.peak_tflops['fp32']:>7.1f}"
    )

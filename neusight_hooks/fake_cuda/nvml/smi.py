"""`nvidia-smi`: its table, its list of GPUs, and its queries as CSV."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from neusight.fake_cuda.nvml.readings import GPUReadings

#: The variable of the environment that holds the readings.
READINGS_VARIABLE = "NEUSIGHT_GPUS"

_MIB = 2**20
_NOT_AVAILABLE = "[N/A]"

#: What one can query of each GPU; a unit follows the number but with `nounits`.
_FIELDS: dict[str, Callable[[GPUReadings, int], str]] = {
    "index": lambda gpu, index: str(index),
    "count": lambda gpu, index: str(gpu.count),
    "name": lambda gpu, index: gpu.name,
    "uuid": lambda gpu, index: gpu.uuid(index),
    "pci.bus_id": lambda gpu, index: gpu.bus_id(index),
    "driver_version": lambda gpu, index: gpu.driver,
    "compute_cap": lambda gpu, index: ".".join(map(str, gpu.compute_capability)),
    "memory.total": lambda gpu, index: f"{gpu.memory_bytes // _MIB} MiB",
    "memory.used": lambda gpu, index: f"{_used(gpu, index)} MiB",
    "memory.free": lambda gpu, index: f"{gpu.memory_bytes // _MIB - _used(gpu, index)} MiB",
    "memory.reserved": lambda gpu, index: "0 MiB",
    "utilization.gpu": lambda gpu, index: "0 %",
    "utilization.memory": lambda gpu, index: "0 %",
    "temperature.gpu": lambda gpu, index: str(gpu.idle_degrees),
    "power.draw": lambda gpu, index: f"{gpu.idle_power_w:.2f} W",
    "power.limit": lambda gpu, index: f"{gpu.power_limit_w:.2f} W",
    "power.max_limit": lambda gpu, index: f"{gpu.power_limit_w:.2f} W",
    "clocks.sm": lambda gpu, index: f"{gpu.clock_mhz:.0f} MHz",
    "clocks.gr": lambda gpu, index: f"{gpu.clock_mhz:.0f} MHz",
    "clocks.max.sm": lambda gpu, index: f"{gpu.clock_mhz:.0f} MHz",
    "clocks.max.gr": lambda gpu, index: f"{gpu.clock_mhz:.0f} MHz",
    "pstate": lambda gpu, index: "P0",
    "persistence_mode": lambda gpu, index: "Enabled",
    "compute_mode": lambda gpu, index: "Default",
    "display_active": lambda gpu, index: "Disabled",
    "display_mode": lambda gpu, index: "Disabled",
}
#: Other names of the same.
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.graphics": "clocks.gr",
    "clocks.max.graphics": "clocks.max.gr",
}
#: Beginnings of fields that exist, and that the forecast has nothing to say of.
_UNKNOWN = (
    *("accounting", "addressing", "clocks", "count", "dramEncryption", "driver_model", "ecc"),
    *("encoder", "enforced", "fan", "gom", "gpu_serial", "gsp", "inforom", "mig", "module", "pci"),
    *("pcie", "power", "protected_memory", "remapped_rows", "retired_pages", "serial", "temp"),
    *("timestamp", "vbios_version", "fabric", "vgpu"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was asked for; its exit status."""
    text = os.environ.get(READINGS_VARIABLE)
    if text is None:
        sys.stderr.write("nvidia-smi: no forecast is open\n")
        return 9  # as without a driver
    options, rest = _parser().parse_known_args(arguments)
    gpu = GPUReadings.from_json(text)
    if rest:
        sys.stderr.write(
            f"nvidia-smi: {rest[0]} is not answered in a forecast; -L, -i, --query-gpu and "
            "--query-compute-apps with --format=csv are\n"
        )
        return 2
    wanted = _indices(gpu, options.id)
    if options.list_gpus:
        lines = [f"GPU {index}: {gpu.name} (UUID: {gpu.uuid(index)})" for index in wanted]
    elif options.query_gpu:
        lines, wrong = _query(gpu, wanted, options.query_gpu.split(","), options.format)
        if wrong:
            sys.stdout.write(f'Field "{wrong}" is not a valid field to query.\n\n')
            return 2
    elif options.query_compute_apps:
        lines = _processes(gpu, options.query_compute_apps.split(","), options.format)
    else:
        lines = _table(gpu, wanted)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id", default="")
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--query-compute-apps", default="")
    parser.add_argument("--format", default="csv")
    # Answered once: what is asked is as it was at the next time.
    for names in (("-l", "--loop"), ("-lms", "--loop-ms")):
        parser.add_argument(*names, nargs="?")
    return parser


def _indices(gpu: GPUReadings, wanted: str) -> list[int]:
    every = range(gpu.count)
    if not wanted:
        return list(every)
    names = wanted.split(",")
    return [
        index
        for index in every
        if {str(index), gpu.uuid(index), gpu.bus_id(index)}.intersection(names)
    ]


def _used(gpu: GPUReadings, index: int) -> int:
    return gpu.used_bytes // _MIB if index == 0 else 0


def _query(
    gpu: GPUReadings, wanted: list[int], names: list[str], form: str
) -> tuple[list[str], str]:
    """The lines, and the first field that does not exist."""
    names = [name.strip() for name in names]
    found = [_FIELDS.get(_ALIASES.get(name, name)) for name in names]
    for name, field in zip(names, found, strict=True):
        if field is None and not name.startswith(_UNKNOWN):
            return [], name
    rows = [
        [_NOT_AVAILABLE if field is None else field(gpu, index) for field in found]
        for index in wanted
    ]
    return _csv(names, rows, form), ""


_UNITS = (" MiB", " MHz", " W", " %")


def _csv(names: list[str], rows: list[list[str]], form: str) -> list[str]:
    parts = [part.strip() for part in form.split(",")]
    if "nounits" in parts:
        rows = [[_without_unit(value) for value in row] for row in rows]
    elif rows:
        names = [f"{name}{_unit(value)}" for name, value in zip(names, rows[0], strict=True)]
    shown = rows if "noheader" in parts else [names, *rows]
    return [", ".join(row) for row in shown]


def _unit(value: str) -> str:
    return next((f" [{unit.strip()}]" for unit in _UNITS if value.endswith(unit)), "")


def _without_unit(value: str) -> str:
    for unit in _UNITS:
        value = value.removesuffix(unit)
    return value


def _processes(gpu: GPUReadings, names: list[str], form: str) -> list[str]:
    values = {
        "pid": str(gpu.pid),
        "process_name": "python",
        "name": "python",
        "used_memory": f"{_used(gpu, 0)} MiB",
        "used_gpu_memory": f"{_used(gpu, 0)} MiB",
        "gpu_uuid": gpu.uuid(0),
    }
    names = [name.strip() for name in names]
    row = [values.get(name, _NOT_AVAILABLE) for name in names]
    return _csv(names, [row] if gpu.used_bytes else [], form)


#: Characters between the bars of a row.
_COLUMNS = (41, 24, 22)


def _table(gpu: GPUReadings, wanted: list[int]) -> list[str]:
    frame = f"+{'+'.join('-' * width for width in _COLUMNS)}+"
    versions = (
        f"NVIDIA-SMI {gpu.driver:<25} Driver Version: {gpu.driver:<15} CUDA Version: {gpu.cuda}"
    )
    width = len(frame) - 4
    lines = [frame.replace("+", "-"), f"| {versions:<{width}} |", frame]
    for index in wanted:
        power = f"{gpu.idle_power_w:.0f}W / {gpu.power_limit_w:.0f}W"
        memory = f"{_used(gpu, index)}MiB / {gpu.memory_bytes // _MIB}MiB"
        name = f"{index:>4}  {gpu.name:<29} On"
        state = f" N/A {gpu.idle_degrees:>4}C    P0 {power:>23}"
        lines += [
            _row(name, f"  {gpu.bus_id(index)} Off", "0".rjust(_COLUMNS[2] - 2)),
            _row(state, memory.rjust(_COLUMNS[1] - 2), "      0%      Default"),
            frame,
        ]
    return lines


def _row(*cells: str) -> str:
    return "".join(f"|{cell:<{width}}" for cell, width in zip(cells, _COLUMNS, strict=True)) + "|"

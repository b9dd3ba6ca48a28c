"""Where the storages of small programs lie, as a table; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""

from __future__ import annotations

from dataclasses import astuple, replace

from default_values import numbers_by_default
from recorded_calls import recorded_calls
from small_programs import PROGRAMS, recorded

from neusight.memory.placement import ALLOCATOR_OPTION, memory_on
from neusight.memory.snapshot import memory_snapshot
from neusight.memory.workspaces import Need, Workspaces
from neusight.predictors.gpu import find_gpu
from places import require_golden

#: What PYTORCH_ALLOC_CONF says, and bytes of the GPU beside its context.
SETTINGS = (
    ("", 80 * 10**9),
    ("expandable_segments:True", 80 * 10**9),
    ("max_split_size_mb:21", 80 * 10**9),
    ("roundup_power2_divisions:4", 80 * 10**9),
    ("roundup_power2_divisions:[16:1,64:2,>:8]", 80 * 10**9),
    ("garbage_collection_threshold:0.6", 30 * 10**6),
    ("", 12 * 10**6),
)


def test_programs_need_as_much_memory_as_the_golden_table_has() -> None:
    lines = []
    for name in PROGRAMS:
        recording = recorded(name).recording
        for gpu_name in ("H100", "T4", "MI300X"):
            gpu = find_gpu(gpu_name)
            found = memory_on(recording, gpu)
            lines.append(f"{name} on {gpu_name}: {found.allocated_range} {found.needed_range}")
            for step in found.steps:
                lines.append(f"  {' '.join(map(str, astuple(step)))}")
            categories = (f"{kind} {size}" for kind, size in found.by_category.items())
            rows = (" ".join(map(str, row)) for row in found.alive)
            lines += [f"  {', '.join(categories)}", *(f"    {row}" for row in rows)]

    require_golden("memory_needs.txt", lines)


def test_programs_lie_in_segments_as_the_golden_table_has_them() -> None:
    """By settings of the allocator: peaks, or what ran out; then the segments at the end."""
    gpu = find_gpu("H100")
    lines = []
    for name in PROGRAMS:
        recording = recorded(name).recording
        for text, capacity in SETTINGS:
            options = {**recording.options, ALLOCATOR_OPTION: text}
            found = memory_on(
                replace(recording, options=options), gpu,
                capacity_bytes=capacity + gpu.context_bytes,
            )  # fmt: skip
            end = found.events[-1]
            lines.append(
                f"{name} {text} {capacity}: {found.peak_allocated} {found.peak_reserved} "
                f"{end.allocated} {end.reserved} {sum(e.address % 2**40 for e in found.events)} "
                f"{found.most_left_out} {found.out_of_memory}"
            )
        snapshot = memory_snapshot(replace(recording), gpu)
        for segment in snapshot["segments"]:
            blocks = (f"{block['size']} {block['state']}" for block in segment["blocks"])
            figures = (segment["total_size"], segment["allocated_size"], segment["requested_size"])
            where = (segment["address"] % 2**40, segment["stream"], segment["segment_type"])
            lines.append(f"  {' '.join(map(str, (*where, *figures)))}: {', '.join(blocks)}")
        trace = snapshot["device_traces"][0]
        actions = sorted({entry["action"] for entry in trace})
        for action in actions:
            sizes = [entry["size"] for entry in trace if entry["action"] == action]
            lines.append(f"  {action}: {len(sizes)} {sum(sizes)}")

    require_golden("memory_segments.txt", lines)


def test_ops_need_for_themselves_what_the_golden_table_has() -> None:
    """Workspaces and temporary tensors of an op, by GPU and release of torch."""
    machines = [("H100", "2.13.0"), ("V100", "2.3.0"), ("MI300X", "2.13.0")]
    spaces = [Workspaces(find_gpu(name), version) for name, version in machines]
    lines: dict[str, None] = {}
    for _, ops in recorded_calls():
        for op in ops:
            needs = [" ".join(map(_need, space.of(op.signature, op.math))) for space in spaces]
            if any(needs):
                shapes = " ".join(str(spec.shape) for spec in op.signature.input_tensors)
                lines[f"{op.signature.op} {shapes}: {' | '.join(needs)}"] = None

    require_golden("op_workspaces.txt", lines)


def _need(need: Need) -> str:
    kept = ("kept" if need.is_kept else "") + ("optional" if need.is_optional else "")
    return f"{need.name} {need.num_bytes} {kept}".strip()


def test_what_is_not_stated_is_as_the_golden_table_has_it() -> None:
    """The numbers of functions and values by default."""
    require_golden("defaults_memory.txt", numbers_by_default("neusight.memory"))

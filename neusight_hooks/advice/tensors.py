"""Which tensor an allocation is, as far as a recording shows."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.ops.operands import itemsize
from neusight.recording.recording import Alloc, OpCall, Recording, TensorSpec


def tensors_of(recording: Recording) -> dict[int, TensorSpec]:
    """Shape and dtype of what was allocated, by the identity of the `Alloc`; those that an op
    returned."""
    found: dict[int, TensorSpec] = {}
    for step in recording.steps:
        returned: list[TensorSpec] = []
        op = ""
        for entry in step.entries:
            if isinstance(entry, OpCall):
                op, returned = entry.signature.op, list(entry.signature.output_tensors)
            elif isinstance(entry, Alloc) and entry.op == op:
                for position, spec in enumerate(returned):
                    if _storage_bytes(spec) == entry.num_bytes:
                        found[id(entry)] = returned.pop(position)
                        break
    return found


def _storage_bytes(spec: TensorSpec) -> int:
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
    return 0 if 0 in spec.shape else (last + 1) * itemsize(spec.dtype)


def parameter_shapes(
    recording: Recording, specs: Mapping[int, TensorSpec]
) -> frozenset[tuple[int, ...]]:
    """The shapes of parameters, gradients and buffers, and those transposed."""
    return frozenset(
        shape
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc)
        and entry.kind in ("parameter", "gradient", "buffer")
        and (spec := specs.get(id(entry))) is not None
        for shape in (spec.shape, spec.shape[::-1])
    )

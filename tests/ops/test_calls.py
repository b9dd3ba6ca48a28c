"""Which kernels calls of ops launch, with their FLOPs and bytes, as a table;
NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""

from __future__ import annotations

from priced_kernels import described
from recorded_calls import recorded_calls

from neusight.ops import kernels_of
from places import require_golden


def test_calls_launch_the_kernels_of_the_golden_table() -> None:
    """A call a line, and under it its kernels: what they are, FLOPs, bytes read and written."""
    lines = []
    for call, ops in recorded_calls():
        kernels = [kernel for op in ops for kernel in kernels_of(op.signature, op.math)]
        lines += [call, *described(kernels)]

    require_golden("op_kernels.txt", lines)

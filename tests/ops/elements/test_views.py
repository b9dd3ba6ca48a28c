"""Views launch nothing."""

from __future__ import annotations

from op_calls import call, kernels, spec


def test_views_launch_nothing() -> None:
    assert kernels(call("view", spec(4), self=spec(2, 2), size=(4,))) == ()
    assert kernels(call("transpose_", spec(2, 2), self=spec(2, 2), dim0=0, dim1=1)) == ()

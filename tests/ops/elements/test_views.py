"""Views launch nothing."""

from __future__ import annotations

from neusight.ops.elements.views import VIEWS
from op_calls import call, kernels, spec


def test_views_launch_nothing() -> None:
    assert kernels(call("view", spec(4), self=spec(2, 2), size=(4,))) == ()
    assert kernels(call("transpose_", spec(2, 2), self=spec(2, 2), dim0=0, dim1=1)) == ()


def test_memory_that_is_handed_out_is_not_written() -> None:
    assert kernels(call("empty", spec(1024), size=(1024,))) == ()
    assert kernels(call("empty_like", spec(1024), self=spec(1024))) == ()


def test_every_view_is_of_aten_and_listed_once() -> None:
    assert len(VIEWS) == len(set(VIEWS))
    assert {"view", "expand", "t", "detach", "record_stream"} <= set(VIEWS)
    assert not {"clone", "contiguous_copy", "repeat"} & set(VIEWS)

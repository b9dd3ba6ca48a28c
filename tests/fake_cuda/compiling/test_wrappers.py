"""The text of a wrapper says all that a forecast needs of its kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_net import torch_compile

from neusight.fake_cuda.compiling.fused_kernel import FusedKernel, TouchedBuffer
from neusight.fake_cuda.compiling.wrappers import Wrapper, read_wrapper
from neusight.forecast import forecast_options
from neusight.session import Session, SessionOptions

KERNEL = FusedKernel(
    name="triton_red_fused_sum_0",
    kind="reduction",
    numels=(("x", 64), ("r0_", 512)),
    buffers=(TouchedBuffer("in_ptr0", None, 2), TouchedBuffer("out_ptr0", 64)),
    num_operations=3,
    origins=("sum.dim_IntList",),
)


def test_what_a_wrapper_says_is_read_back_whole() -> None:
    wrapper = Wrapper(
        "CompiledFunction", {KERNEL.name: KERNEL}, {"attention": "flash"}, ("a line",)
    )

    assert read_wrapper(f"def call(args):\n    pass\n\n{wrapper.line()}") == wrapper


def test_while_a_graph_is_compiled_the_session_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    lower, stated = GraphLowering.run, []

    def listening(self: Any, *args: Any) -> Any:
        stated.append(session.doing)
        return lower(self, *args)

    monkeypatch.setattr(GraphLowering, "run", listening)
    session = Session(SessionOptions(forecast_options("H100")))
    with session:
        function: Any = torch_compile(lambda x: torch.relu(x) + 1)
        function(torch.ones(4, device="cuda"))
        stated.append(session.doing)

    assert stated == ["compiling graph 1, 4 nodes", ""]


def test_text_that_says_nothing_is_no_wrapper() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        read_wrapper("def call(args):\n    pass\n")

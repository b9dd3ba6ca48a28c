"""What cannot be compiled here runs eager and is named; what torch refuses, it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_net import Net, infer, ops, steady, torch_compile

import neusight


def fail_on(monkeypatch: pytest.MonkeyPatch, *, backward: bool) -> None:
    from torch._inductor.graph import GraphLowering

    run = GraphLowering.run

    def fail(self: Any, *args: object) -> object:
        if self.is_backward == backward:
            raise NotImplementedError("no lowering for this\nnor for that")
        return run(self, *args)

    monkeypatch.setattr(GraphLowering, "run", fail)


def test_a_graph_that_inductor_cannot_compile_runs_eager_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_on(monkeypatch, backward=False)
    with neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), fullgraph=True))

    assert "aten::native_layer_norm" in ops(*forecast.recording.steps)
    [line] = forecast.warnings
    assert line.startswith("a graph is forecast as eager: compiled_net.py:")
    assert line.endswith("NotImplementedError: no lowering for this")


def test_a_backward_that_inductor_cannot_compile_runs_op_by_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_on(monkeypatch, backward=True)
    with neusight.forecast_on("H100") as forecast:
        net: Any = torch.compile(Net().cuda())
        for _ in range(3):
            net(torch.randn(8, 256, device="cuda")).sum().backward()
    phases = {call.phase for call in steady(forecast) if "triton" in call.signature.op}

    assert phases == {"forward"}
    assert sum(call.signature.op == "aten::mm" for call in steady(forecast)) == 3
    [line] = forecast.warnings
    assert line.startswith("a backward graph is forecast as its ops one by one: compiled_net.py:")


@pytest.mark.parametrize(
    ("filename", "named"),
    [("/home/ada/train.py", "train.py:2"), ("<ipython-input-3-0123456789ab>", "In[3]:2")],
)
def test_a_frame_that_dynamo_fails_on_is_named_by_its_first_line(
    filename: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    def fail(self: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(InstructionTranslator, "run", fail)
    with neusight.forecast_on("H100") as forecast:
        torch_compile(function_in(filename))(torch.ones(4, device="cuda"))

    assert "aten::relu" in ops(*forecast.recording.steps)
    [line] = forecast.warnings
    assert line.startswith(f"a graph is forecast as eager: {named} ")


def function_in(filename: str) -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec(compile("\ndef shifted(x): return torch.relu(x) + 1", filename, "exec"), names)
    return names["shifted"]


def test_a_backend_of_the_programs_own_fails_as_it_does() -> None:
    def backend(graph: object, inputs: object) -> Any:
        raise ZeroDivisionError("of the program")

    with pytest.raises(Exception, match="of the program"), neusight.forecast_on("H100"):
        torch_compile(lambda x: x + 1, backend=backend)(torch.ones(4, device="cuda"))


def test_a_gpu_that_triton_does_not_know_is_torchs_to_refuse() -> None:
    with pytest.raises(Exception, match="too old to be supported"), neusight.forecast_on("P100"):
        torch_compile(lambda x: x + 1)(torch.ones(4, device="cuda"))

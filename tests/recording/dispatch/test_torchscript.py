"""`torch.jit.trace` of modules on the GPU of a forecast, and the graphs that it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_net import ops
from torch import Tensor, nn

from neusight.session import forecast_on

# What torch says of each trace: it is deprecated, and sizes become constants of it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def make_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)
    )


def trace(module: nn.Module, *inputs: Tensor) -> Any:
    traced: Any = torch.jit.trace(module, inputs)  # type: ignore[no-untyped-call, unused-ignore]
    return traced


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_traced_network_holds_its_ops_and_no_constant_in_their_place(device: str) -> None:
    with forecast_on("H100"):
        torch.ones(1, device="cuda")
        net = make_net().to(device)
        traced = trace(net, torch.ones(2, 3, 32, 32, device=device))
        out = traced(torch.ones(4, 3, 32, 32, device=device))

    nodes = [node.kind() for node in traced.inlined_graph.nodes()]
    assert tuple(out.shape) == (4, 10)
    assert out.device.type == device
    called = [kind for kind in nodes if kind.startswith("aten::") and kind != "aten::add_"]
    assert called == [
        "aten::_convolution", "aten::batch_norm", "aten::relu", "aten::flatten", "aten::linear",
    ]  # fmt: skip


def test_a_traced_network_is_forecast_as_the_network_itself() -> None:
    def forecast_of(is_traced: bool) -> Any:
        with forecast_on("H100") as forecast:
            net: Any = make_net().cuda()
            batch = torch.ones(2, 3, 32, 32, device="cuda")
            if is_traced:
                net = trace(net, batch)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                net(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return forecast

    plain, traced = forecast_of(False), forecast_of(True)

    assert ops(traced.recording.steps[-1]) == ops(plain.recording.steps[-1])


def test_recurrent_networks_and_attention_can_be_traced() -> None:
    with forecast_on("H100"):
        modules: list[nn.Module] = [
            nn.LSTM(4, 8),
            nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True),
        ]
        for module in modules:
            tokens = torch.ones(2, 5, 4, device="cuda")
            traced = trace(module.cuda(), tokens)
            assert traced(tokens)[0].device.type == "cuda"


def test_a_network_made_before_the_forecast_is_as_it_was_although_its_trace_is_kept() -> None:
    net = make_net()
    before = [parameter.detach().clone() for parameter in net.parameters()]

    with forecast_on("H100"):
        kept = trace(net.cuda(), torch.ones(2, 3, 32, 32, device="cuda"))

    assert kept is not None
    assert all(map(torch.equal, net.parameters(), before))


def test_tensorboard_is_given_the_graph_of_a_network(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    graphs: list[Any] = []
    with forecast_on("H100"), SummaryWriter(tmp_path) as writer:  # type: ignore[no-untyped-call, unused-ignore]
        file_writer: Any = writer._get_file_writer()  # type: ignore[no-untyped-call, unused-ignore]
        file_writer.add_graph = lambda graph, *rest: graphs.append(graph)
        writer.add_graph(make_net().cuda(), torch.ones(2, 3, 32, 32, device="cuda"))  # type: ignore[no-untyped-call, unused-ignore]

    ops = {node.op for node in graphs[0][0].node}
    assert {"aten::_convolution", "aten::batch_norm", "aten::linear"} <= ops


@pytest.mark.parametrize("is_traced", [True, False])
def test_a_network_that_was_saved_is_loaded_and_moved(is_traced: bool, tmp_path: Path) -> None:
    net, batch, path = make_net().eval(), torch.ones(2, 3, 32, 32), tmp_path / "net.pt"
    saved: Any = trace(net, batch) if is_traced else torch.jit.script(net)
    saved.save(path)
    load: Any = torch.jit.load
    before = load(path)
    expected = before(batch)

    with forecast_on("H100") as forecast:
        for loaded in (load(path).cuda(), load(path, map_location="cuda"), before.cuda()):
            found = loaded(batch.cuda())
            assert (found.device.type, tuple(found.shape)) == ("cuda", (2, 10))
            assert {tensor.device.type for tensor in loaded.state_dict().values()} == {"cuda"}

    assert ops(*forecast.recording.steps)["aten::addmm"] == 3
    assert forecast.unmapped == []
    assert torch.equal(before(batch), expected)

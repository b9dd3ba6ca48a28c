"""Each op knows its module, its phase and the forward op that its backward belongs to."""

from __future__ import annotations

import threading

import torch

import neusight
from neusight.recording.recording import OpCall
from recorded_programs import Block, calls, data, where


def test_forward_ops_name_the_module_that_runs_and_backward_ops_that_of_their_forward() -> None:
    def program() -> None:
        model = Block().cuda()
        model(data().requires_grad_()).sum().backward()

    found = calls(program)
    assert where(found, "mm") == [
        ("forward", "Block.inner"), ("forward", "Block.outer.1"),
        ("backward", "Block.outer.1"), ("backward", "Block.outer.1"),
        ("backward", "Block.inner"), ("backward", "Block.inner"),
    ]  # fmt: skip
    assert where(found, "gelu_backward") == [("backward", "Block.outer.0")]
    assert where(found, "sin") == [("forward", "Block")]
    assert where(found, "sum") == [("forward", "")]


def test_backward_ops_carry_their_node_and_the_number_of_their_forward_op() -> None:
    def program() -> None:
        Block().cuda()(data().requires_grad_()).sum().backward()

    found = calls(program)
    forward = {
        c.sequence_nr: c for c in found if c.phase == "forward" and c.sequence_nr is not None
    }
    (gelu,) = [call for call in found if call.signature.op == "aten::gelu_backward"]
    assert gelu.node == "GeluBackward0"
    assert gelu.sequence_nr is not None
    assert forward[gelu.sequence_nr].signature.op == "aten::gelu"
    assert all(call.node for call in found if call.phase == "backward")


def test_sequence_numbers_start_from_zero_in_each_step() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Block().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(data()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    for step in forecast.recording.steps:
        numbers = [
            e.sequence_nr for e in step.entries
            if isinstance(e, OpCall) and e.phase == "forward" and e.sequence_nr is not None
        ]  # fmt: skip
        assert not numbers or min(numbers) == 0


def test_optimizers_have_a_phase_of_their_own() -> None:
    def program() -> None:
        model = Block().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(data()).sum().backward()
        optimizer.step()

    found = calls(program)
    assert {call.phase for call in found if "foreach" in call.signature.op} == {"optimizer"}


def test_an_optimizer_inside_backward_is_still_an_optimizer() -> None:
    def program() -> None:
        model = Block().cuda()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
        model(data()).sum().backward()

    found = calls(program)
    assert {call.phase for call in found if call.signature.op == "aten::_foreach_add_"} == {
        "optimizer"
    }


def test_recomputation_belongs_to_backward_and_to_its_module() -> None:
    from torch.utils.checkpoint import checkpoint

    def program() -> None:
        model = Block().cuda()
        checkpoint(model, data().requires_grad_(), use_reentrant=False).sum().backward()

    assert where(calls(program), "gelu") == [
        ("forward", "Block.outer.0"), ("backward", "Block.outer.0")
    ]  # fmt: skip


def test_ops_of_another_thread_have_numbers_and_phases_without_a_module() -> None:
    def work() -> None:
        weight = data().requires_grad_()
        weight.relu().sigmoid().sum().backward()

    def program() -> None:
        data()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    found = [call for call in calls(program) if call.thread]
    named = {(call.signature.op, call.phase): call for call in found}
    relu, sigmoid = named["aten::relu", "forward"], named["aten::sigmoid", "forward"]
    back = named["aten::sigmoid_backward", "backward"]
    assert (relu.sequence_nr, relu.node, relu.module) == (0, "", "")
    assert (sigmoid.sequence_nr, back.sequence_nr) == (1, 1)
    assert back.node == "SigmoidBackward0"
    assert {call.phase for call in found} == {"forward", "backward"}

"""Operators around the ops of a step: what the dispatcher calls for the program, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import neusight
from neusight.recording.recording import OpCall, Operator, Step


def last_step(program: Callable[[], object], repeat: int = 1) -> Step:
    """The step that a program is, on a GPU."""
    with neusight.forecast_on("H100") as forecast:
        for _ in range(repeat):
            program()
            forecast.step()
    return [step for step in forecast.recording.steps if step.entries][-1]


def tree(step: Step) -> list[str]:
    """Operators and the ops in them, each a line, as deep as it lies."""
    lines: list[str] = []
    open_: list[Operator] = []
    waiting = list(step.operators)
    for position, entry in enumerate([*step.entries, None]):
        while waiting and waiting[0].first <= position:
            operator = waiting.pop(0)
            open_ = [*open_[: operator.depth], operator]
            lines.append(" " * operator.depth + operator.name)
        while open_ and open_[-1].last <= position:
            open_.pop()
        if isinstance(entry, OpCall):
            lines.append(" " * len(open_) + f"({entry.signature.op})")
    return lines


def test_a_linear_layer_stands_around_its_ops() -> None:
    x, weight, bias = torch.ones(4, 8), torch.ones(2, 8), torch.ones(2)

    def program() -> None:
        functional.linear(x.cuda(), weight.cuda(), bias.cuda())

    assert tree(last_step(program)) == [
        "aten::to", " (aten::_to_copy)",
        "aten::to", " (aten::_to_copy)",
        "aten::to", " (aten::_to_copy)",
        "aten::linear", " (aten::t)", " (aten::addmm)",
    ]  # fmt: skip


def test_ops_of_the_cpu_have_their_own_names() -> None:
    def program() -> None:
        torch.ones(2).add_(torch.ones(2))
        torch.empty(2, device="cuda")

    made = ["aten::ones", " aten::empty", " aten::fill_"]
    assert tree(last_step(program))[:7] == [*made, *made, "aten::add_"]


def test_nodes_of_autograd_have_their_numbers() -> None:
    def program() -> None:
        x = torch.ones(4, device="cuda", requires_grad=True)
        (x * 2).sum().backward()

    nodes = [operator for operator in last_step(program).operators if operator.is_node]

    assert [(node.name, node.sequence_nr) for node in nodes if "::" not in node.name] == [
        ("SumBackward0", 1),
        ("MulBackward0", 0),
    ]


def test_a_program_in_inference_mode_has_the_same_operators() -> None:
    def program() -> None:
        functional.linear(torch.ones(4, 8, device="cuda"), torch.ones(2, 8, device="cuda"))

    plain = tree(last_step(program))
    inferred = tree(last_step(torch.inference_mode()(program)))

    assert "aten::linear" in plain
    assert inferred == plain


def test_an_error_in_an_op_is_the_programs_own_and_ends_its_operators() -> None:
    def program() -> None:
        x = torch.ones(4, 8, device="cuda")
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            functional.linear(x, torch.ones(2, 3, device="cuda"))
        functional.dropout(x, 0.0, training=False)

    lines = tree(last_step(program))

    assert lines[-1] == "aten::dropout"
    assert "aten::linear" in lines


def test_the_programs_own_profiler_sees_what_it_always_sees() -> None:
    found = []

    def program() -> None:
        with torch.profiler.profile() as profiler:
            functional.linear(torch.ones(4, 8).cuda(), torch.ones(2, 8).cuda())
        found.append({event.name for event in profiler.events()})

    step = last_step(program)

    assert "aten::linear" in found[0]
    assert "aten::linear" in tree(step)


def test_another_thread_adds_none() -> None:
    def elsewhere() -> None:
        functional.linear(torch.ones(4, 8), torch.ones(2, 8))

    def program() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.ones(2, device="cuda").relu()

    assert "aten::linear" not in tree(last_step(program))


def test_steps_that_repeat_are_followed_no_longer() -> None:
    names: list[bool] = []
    model = nn.Linear(4, 4)

    with neusight.forecast_on("H100") as forecast:
        model.cuda()
        session = neusight.session.Session._current
        assert session is not None and session._recorder is not None
        for _ in range(5):
            model(torch.ones(2, 4, device="cuda")).sum().item()
            forecast.step()
            names.append(session._recorder.operators.is_on)

    assert not any(names[2:])
    assert all(step.operators for step in forecast.recording.steps if step.kind != "setup")

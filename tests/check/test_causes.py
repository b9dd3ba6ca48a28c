"""What new, gone and changed work adds, and the lines that lead there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from check_results import BEFORE
from neusight.integrations.check.baseline import MemoryRow, OpRow
from neusight.integrations.check.causes import (
    Cause,
    common_stack,
    memory_causes_of,
    time_causes_of,
)
from neusight.integrations.check.difference import Difference
from neusight.integrations.check.observation import Observation

SMALL, LARGE, NORM = ("gemm 8", "1"), ("gemm 16", "2"), ("norm 8", "3")


def row(module: str, work: tuple[str, str], ops: int, kernels: int, us: int, host: int) -> OpRow:
    return OpRow(module, "forward", "aten::mm", *work, ops, kernels, us * 1000, host * 1000)


def seen(**fields: object) -> Observation:
    empty = Observation(BEFORE, {}, {}, {}, {}, ())
    return replace(empty, **fields)  # type: ignore[arg-type]


def test_equal_changes_of_layers_are_one_cause_with_what_all_of_them_add() -> None:
    before = [row(f"Net.{n}", SMALL, 2, 2, 20, 6) for n in range(3)]
    before += [row("Net.head", NORM, 1, 2, 100, 4), row("Net.kept", NORM, 4, 4, 80, 16)]
    now = [row(f"Net.{n}", LARGE, 3, 6, 90, 15) for n in range(3)]
    now += [row("Net.kept", NORM, 1, 1, 20, 4)]
    stacks = {(f"Net.{n}", "forward", "aten::mm", *LARGE): (("a:1",), ("a:2",)) for n in range(3)}

    found = time_causes_of(
        Difference(before, now), seen(op_stacks=stacks, made={"Net.0": ("m:1",)})
    )

    changed = ("forward", "aten::mm", "2 x gemm 8", "3 x gemm 16")
    assert found == (
        Cause("Net.[1-2]", *changed, 140.0, 18.0, 8, ("a:2",), (), (("a:1",),)),
        Cause("Net.0", *changed, 70.0, 9.0, 4, ("a:2",), ("m:1",), (("a:1",),)),
        Cause("Net.kept", "forward", "aten::mm", "3 x norm 8", "", -60.0, -12.0, -3, ()),
        Cause("Net.head", "forward", "aten::mm", "norm 8", "", -20.0, -4.0, -1, ()),
    )


def test_storages_that_only_moved_cancel_and_others_add_what_they_grew_by() -> None:
    def storage(module: str, num_bytes: int, kind: str = "activation") -> MemoryRow:
        return MemoryRow(module, "forward", kind, "aten::mm", 1, num_bytes)

    before = replace(
        BEFORE, memory=(storage("Old.a", 64), storage("Net.0", 100), storage("Gone", 30))
    )
    after = replace(
        BEFORE, memory=(storage("New.a", 64), storage("Net.0", 400), storage("Net.1", 7, "buffer"))
    )
    key = ("Net.0", "forward", "activation", "aten::mm")

    found = memory_causes_of(before, seen(case=after, memory_stacks={key: ("a:3",)}))

    assert found == (
        Cause("Net.0", "forward", "aten::mm", "activation", "activation", 300, 0.0, 0, ("a:3",)),
        Cause("Gone", "forward", "aten::mm", "activation", "", -30, 0.0, 0, ()),
        Cause("Net.1", "forward", "aten::mm", "", "buffer", 7, 0.0, 0, ()),
    )


def cause(amount: float, *stack: str, was: str = "", module: str = "Net") -> Cause:
    return Cause(module, "forward", "aten::mm", was, "gemm", amount, 0.0, 1, stack)


@pytest.mark.parametrize(
    ("causes", "stack"),
    [
        ([cause(5, "f:2", "train:1"), cause(5, "f:2", "train:1")], ("f:2", "train:1")),
        ([cause(5, "f:2", "g:7", "t:1"), cause(4, "f:3", "g:7", "t:1")], ("g:7", "t:1")),
        ([cause(5, "f:2", "train:1"), cause(4, "g:2", "train:1")], ()),  # the outermost line alone
        ([cause(5, "train:1"), cause(4, "train:1")], ("train:1",)),
        # What was not there makes up nine tenths: all of it counts, and only it.
        ([cause(90, "f:2", "t:1"), cause(10, "f:3", "t:1", was="gemm")], ("f:2", "t:1")),
        ([cause(89, "f:2", "t:1"), cause(11, "f:3", "t:1", was="gemm")], ()),
        # What grew need not lead there all: nine tenths do.
        ([cause(90, "f:2", "t:1", was="a"), cause(10, "g:3", "t:1", was="a")], ("f:2", "t:1")),
        ([cause(89, "f:2", "t:1", was="a"), cause(11, "g:3", "t:1", was="a")], ()),
        # Modules count before the optimizer; what shrinks and what has no line does not.
        ([cause(9, "o:1", "t:1", module="(optimizer)"), cause(1, "f:2", "t:1")], ("f:2", "t:1")),
        ([cause(9, "o:1", "t:1", module="(optimizer)")], ("o:1", "t:1")),
        ([cause(-9, "g:1", "t:1"), cause(0, "g:1", "t:1"), cause(1, "f:2", "t:1")], ("f:2", "t:1")),
        ([cause(9)], ()),
        ([], ()),
    ],
)  # fmt: skip
def test_the_lines_that_most_of_an_increase_has_in_common(
    causes: list[Cause], stack: tuple[str, ...]
) -> None:
    assert common_stack(causes) == stack

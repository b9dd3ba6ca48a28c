"""Work paired off between two cases: what moved, what is new, and what only its price changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from check_results import BEFORE
from neusight.integrations.check.baseline import MemoryRow, OpRow
from neusight.integrations.check.difference import (
    Difference,
    changes_by_tool,
    price_changes_of,
    with_todays_names,
)


def row(module: str, op: str, signature: str, ops: int, kernels: int, ns: int, host: int) -> OpRow:
    return OpRow(module, "forward", op, "work", signature, ops, kernels, ns, host)


def mm(module: str, ops: int = 1, *, ns: int = 10, signature: str = "s") -> OpRow:
    return row(module, "mm", signature, ops, ops, ns * ops, ops)


def test_what_moved_is_paired_and_the_rest_is_gone_or_new() -> None:
    found = Difference(
        [mm("a", 5), mm("b", 3), mm("c", 2, signature="t")], [mm("a", 2), mm("x", 1), mm("y", 9)]
    )

    assert found.kept == {("forward", "mm", "s"): 8}
    assert found.moved == {("a", "x"): 1, ("a", "y"): 2, ("b", "y"): 3}
    assert found.gone == {("c", "forward", "mm", "t"): 2}
    assert found.new == {("y", "forward", "mm", "s"): 4}


def test_a_renamed_prefix_is_renamed_in_all_rows_by_most_votes() -> None:
    def ops(*modules: str) -> tuple[OpRow, ...]:
        return tuple(mm(name, n, signature=name[-1]) for n, name in enumerate(modules, start=1))

    before = replace(BEFORE, ops=ops("Old.a", "Old.b", "Old.e.c", "Kept.d"), memory=())
    now = replace(BEFORE, ops=ops("New.a", "New.b", "Net.c", "Kept.d"))

    renamed, count = with_todays_names(before, now)

    assert [op.module for op in renamed.ops] == ["New.a", "New.b", "Net.c", "Kept.d"]
    assert count == 6
    assert with_todays_names(now, now) == (now, 0)


def test_what_did_not_move_is_renamed_with_the_module_that_it_was_in() -> None:
    held = MemoryRow("Old.held", "forward", "activation", "mm", 1, 8)
    before = replace(BEFORE, ops=(mm("Old.a"), mm("Old.gone", signature="t")), memory=(held,))

    renamed, count = with_todays_names(before, replace(BEFORE, ops=(mm("New.a"),), memory=()))

    assert [op.module for op in renamed.ops] == ["New.a", "New.gone"]
    assert renamed.memory == (held._replace(module="New.held"),)
    assert count == 1


@pytest.mark.parametrize(
    ("bound", "latency"), [("compute", 1000 * 50 / 800), ("host", 1000 * 25 / 100)]
)
def test_what_the_tool_prices_otherwise_is_its_part_of_a_change(bound: Any, latency: float) -> None:
    """Of 800 ns of kernels and 100 of the host, ops that are gone change as their kind did."""
    before = replace(
        BEFORE,
        bound=bound,
        ops=(
            row("a", "mm", "s", 2, 4, 400, 40), row("b", "mm", "t", 1, 2, 200, 20),
            row("c", "add", "u", 1, 1, 200, 40),
        ),
    )  # fmt: skip
    now = replace(
        BEFORE, tool={"neusight": "2", "torch": "2.13.0"}, ops=(row("a", "mm", "s", 2, 6, 425, 50),)
    )

    found = changes_by_tool(before, now, Difference(before.ops, now.ops), is_same_program=False)

    # mm grew by a sixteenth on the GPU and a quarter on the host; so did what is gone.
    assert found["gpu_busy_us"] == pytest.approx(900 * 50 / 800)
    assert found["step_latency_us"] == pytest.approx(latency)
    assert found["num_kernels"] == pytest.approx(2 + 1 + 0.5)


def test_where_the_program_is_the_same_all_of_a_change_is_the_tools() -> None:
    before = replace(BEFORE, metrics={**BEFORE.metrics, "num_recompiles": 2})
    now = replace(BEFORE, tool={}, metrics={**BEFORE.metrics, "gpu_busy_us": 905.0})
    ops = Difference(BEFORE.ops, now.ops)

    found = changes_by_tool(before, now, ops, is_same_program=True)

    changed = {name: amount for name, amount in found.items() if amount}
    assert changed == {"gpu_busy_us": 5.0, "num_recompiles": -2}
    assert changes_by_tool(BEFORE, BEFORE, ops, is_same_program=True) == {}


@pytest.mark.parametrize("bound", ["compute", "host"])
def test_without_kernels_no_part_of_a_change_is_the_tools(bound: Any) -> None:
    before = replace(BEFORE, ops=(), bound=bound)
    now = replace(before, tool={})

    found = changes_by_tool(before, now, Difference((), ()), is_same_program=False)

    assert found == {"step_latency_us": 0.0, "gpu_busy_us": 0.0, "num_kernels": 0}


def test_ops_whose_price_changed_most_come_first() -> None:
    before = [
        mm("a", 2, ns=100),
        row("a", "add", "s", 1, 1, 400, 1),
        row("b", "view", "s", 1, 0, 0, 1),
        row("b", "sum", "s", 1, 1, 1000, 1),
    ]
    now = [
        mm("a", 2, ns=110),
        row("a", "add", "s", 1, 1, 300, 1),
        row("b", "view", "s", 1, 0, 5, 1),
        row("b", "sum", "s", 1, 1, 1010, 1),
    ]

    found = price_changes_of(Difference(before, now))

    assert [name for name, _ in found] == ["add", "mm", "sum"]
    assert [change for _, change in found] == pytest.approx([-0.25, 0.1, 0.01])
    assert price_changes_of(Difference(before, before)) == ()

"""Ops and modules that fused code comes from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from neusight.fake_cuda.compiling.origins import module_of, ops_of


def node(*origins: tuple[str, str], stack: str = "nn_module_stack") -> Any:
    """A node of Inductor's scheduler that computes these ops, called by these modules."""
    found = [
        SimpleNamespace(
            op="call_function",
            target=target,
            meta={stack: {"1": ("L['self']", object), "2": (path, object)}},
        )
        for target, path in origins
    ]
    made = SimpleNamespace(node=SimpleNamespace(get_origins=lambda: found))
    made.get_nodes = lambda: [made]
    return made


def test_ops_are_named_without_their_namespace() -> None:
    assert ops_of([node(("aten.relu.default", ""), ("aten.add.Tensor", ""))]) == (
        "add.Tensor", "relu.default",
    )  # fmt: skip


def test_the_module_is_the_innermost_that_all_share() -> None:
    nodes = [
        node(("aten.relu.default", "L['self'].blocks.0.norm")),
        node(("aten.add.Tensor", "L['self'].blocks.0.mlp.2"), stack="fwd_nn_module_stack"),
    ]

    assert module_of(nodes) == "blocks.0"
    assert module_of(nodes[:1]) == "blocks.0.norm"


def test_code_without_origins_is_of_no_module() -> None:
    assert module_of([node()]) == ""

"""Where fused code comes from: the ops that the program called, and the modules that did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any


def ops_of(nodes: Iterable[Any]) -> tuple[str, ...]:
    """The ops that these nodes of Inductor's scheduler compute, sorted."""
    ops = {str(origin.target) for origin in _origins(nodes) if origin.op == "call_function"}
    return tuple(sorted(op.removeprefix("aten.") for op in ops))


def module_of(nodes: Iterable[Any]) -> str:
    """The innermost module that called all of them, relative to what was compiled."""
    paths = [path.split(".") for path in map(path_of, _origins(nodes)) if path]
    if not paths:
        return ""
    levels = zip(*paths, strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)]
    return ".".join(shared[1:])  # the first is the compiled module's own name, as "L['self']"


def _origins(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for part in node.get_nodes():
            if part.node is not None:
                yield from part.node.get_origins()


def path_of(origin: Any) -> str:
    """The path of the module that ran when the node was traced, or its forward op was."""
    stack = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""

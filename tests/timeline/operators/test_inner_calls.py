"""What ops call inside: the table against torch's own kernels, where all devices share them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neusight
from neusight.recording.dispatch.record_functions import RecordFunctions
from neusight.recording.recording import OpSignature
from neusight.timeline.operators.inner_calls import CLOSE, Open, calls_within

aten = torch.ops.aten

#: Ops whose kernel for the CPU calls what that for CUDA does (CompositeExplicitAutograd).
SHARED: dict[str, Callable[[torch.Tensor], object]] = {
    "transpose": lambda x: aten.transpose.int(x, 0, 1),
    "t": lambda x: aten.t.default(x),
    "permute": lambda x: aten.permute.default(x, [1, 0]),
    "expand": lambda x: aten.expand.default(x, [2, 4, 6]),
    "select": lambda x: aten.select.int(x, 0, 1),
    "slice": lambda x: aten.slice.Tensor(x, 0, 0, 2),
    "unsqueeze": lambda x: aten.unsqueeze.default(x, 0),
    "squeeze": lambda x: aten.squeeze.default(x),
    "diagonal": lambda x: aten.diagonal.default(x),
    "unfold": lambda x: aten.unfold.default(x, 0, 2, 1),
    "detach": lambda x: aten.detach.default(x),
    "split": lambda x: aten.split.Tensor(x, 2),
    "split_with_sizes": lambda x: aten.split_with_sizes.default(x, [2, 2]),
    "unbind": lambda x: aten.unbind.int(x),
    "_to_copy": lambda x: aten._to_copy.default(x, dtype=torch.float64),
    "clone": lambda x: aten.clone.default(x),
    "empty_like": lambda x: aten.empty_like.default(x),
    "new_empty": lambda x: aten.new_empty.default(x, [3]),
    "new_ones": lambda x: aten.new_ones.default(x, [3]),
    "new_full": lambda x: aten.new_full.default(x, [3], 1.0),
    "ones_like": lambda x: aten.ones_like.default(x),
    "full_like": lambda x: aten.full_like.default(x, 2.0),
    "rand_like": lambda x: aten.rand_like.default(x),
    "stack": lambda x: aten.stack.default([x, x])[0],
}


def called_on_cpu(op: str, x: torch.Tensor) -> list[str]:
    seen: list[str] = []

    def begins(record: int, number: int, is_node: bool) -> bool:
        seen.append(functions.name_of(record).decode())
        return False

    functions = RecordFunctions(begins)
    functions.switch(True)
    try:
        SHARED[op](x)
    finally:
        functions.switch(False)
    return seen[1:]


@pytest.mark.parametrize("op", SHARED)
def test_an_op_calls_on_the_gpu_what_it_calls_on_the_cpu(op: str) -> None:
    x = torch.rand(4, 6)
    with neusight.forecast_on("H100") as forecast:
        SHARED[op](x.cuda())
    signature = forecast.recording.steps[-1]
    calls = [entry for entry in signature.entries if getattr(entry, "signature", None)]
    named = [one.signature for one in calls if one.signature.op == f"aten::{op}"]  # type: ignore[union-attr]

    inside = [token.name for token in calls_within(named[-1]) if isinstance(token, Open)]

    on_cpu = [name for name in called_on_cpu(op, x) if name != "aten::view"]
    assert inside == on_cpu[: len(inside)]
    assert len(inside) >= len(on_cpu) or op == "stack"


def test_every_text_of_the_table_is_balanced() -> None:
    from neusight.timeline.operators import inner_calls

    for name in inner_calls._ALWAYS:
        tokens = calls_within(OpSignature(f"aten::{name}", "", (), ()))
        opened = sum(isinstance(token, Open) for token in tokens)
        assert opened == tokens.count(CLOSE), name

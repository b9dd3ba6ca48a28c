"""An op from the cache gives what it gave the first time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neusight
from neusight.recording.dispatch.op_cache import OpCache, cache_key
from neusight.recording.recorder import Recorder
from neusight.recording.recording import TensorSpec
from neusight.recording.values.known import may_be_known
from recorded_programs import calls, named

aten = torch.ops.aten


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int]]:
    names = [
        "linear", "add_", "view", "transpose", "sum", "cat", "chunk", "slice", "half", "float",
        "where", "sort", "unbind", "expand", "unsafe", "copy", "softmax", "max",
    ]  # fmt: skip
    return draw(st.lists(st.tuples(st.sampled_from(names), st.integers(1, 3)), max_size=12))


def run_program(program: list[tuple[str, int]], device: str) -> list[tuple[Any, ...]]:
    """Shapes, strides, dtypes and offsets of what each op gives."""
    x = torch.ones(4, 6, device=device)
    weight = torch.ones(6, 6, device=device)
    found: list[tuple[Any, ...]] = []
    ops: dict[str, Any] = {
        "linear": lambda x, n: nn.functional.linear(x.float().reshape(-1, 6), weight),
        "add_": lambda x, n: x.add_(n),
        "view": lambda x, n: x.reshape(2, -1),
        "transpose": lambda x, n: x.transpose(0, -1),
        "sum": lambda x, n: x.sum(0, keepdim=True).expand(4, *x.shape[1:]),
        "cat": lambda x, n: torch.cat([x] * n),
        "chunk": lambda x, n: x.chunk(2, 0)[0],
        "slice": lambda x, n: x[1:],
        "half": lambda x, n: x.half(),
        "float": lambda x, n: x.float(),
        "where": lambda x, n: torch.where(x > 0, x, -x),
        "sort": lambda x, n: x.sort(-1).values,
        "unbind": lambda x, n: torch.stack(x.unbind(0)[:n]),
        "expand": lambda x, n: x[:1].expand(4, *x.shape[1:]).clone(),
        "unsafe": lambda x, n: torch.unsafe_chunk(x, 2)[0],
        "copy": lambda x, n: torch.empty_like(x).copy_(x),
        "softmax": lambda x, n: x.float().softmax(-1),
        "max": lambda x, n: torch.max(x, -1, keepdim=True).indices.to(x.dtype) + x,
    }
    for name, number in program:
        if x.numel() == 0 or x.numel() % 12:
            x = torch.ones(4, 6, device=device)
        x = ops[name](x.clone() if name == "add_" else x, number)
        # The stride of a dimension of one element says nothing; devices differ in it.
        strides = tuple(s for s, size in zip(x.stride(), x.shape, strict=True) if size > 1)
        found.append((name, tuple(x.shape), strides, x.dtype, int(x.storage_offset())))
    return found


@given(program=programs())
@settings(max_examples=25)
def test_repeated_ops_give_what_first_ones_give_and_what_the_cpu_gives(
    program: list[tuple[str, int]],
) -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        first = run_program(program, "cuda")
        again = run_program(program, "cuda")

    assert first == again == run_program(program, "cpu")


def test_equal_ops_share_one_signature() -> None:
    def program() -> None:
        x = torch.ones(100, device="cuda")
        for factor in (2.0, 3.0, 2.0):
            (x * factor).cpu()

    found = named(calls(program), "mul")
    assert len(found) == 3
    assert len({id(call.signature) for call in found}) == 1


def test_calls_that_return_the_same_have_the_same_key() -> None:
    mul = torch.ops.aten.mul.Tensor
    x = torch.ones(2, 3)

    assert cache_key(mul, (x, 2.0), {}) == cache_key(mul, (x, 3.0), {})
    assert cache_key(mul, (x, 2), {}) != cache_key(mul, (x, 3), {})
    assert cache_key(mul, (x, x), {}) != cache_key(mul, (x, x.double()), {})
    with neusight.forecast_on("H100"):
        one, other = torch.ones(2, 3, device="cuda"), torch.ones(2, 3, device="cuda")
        assert cache_key(mul, (one, other), {}) == cache_key(mul, (other, one), {})
        assert cache_key(mul, (one, one), {}) != cache_key(mul, (one, other), {})
    assert cache_key(mul, (x, {}), {}) is None  # nothing that can be looked up


@pytest.mark.parametrize(
    ("func", "answer"),
    [
        (aten.mul.Tensor, "new"),
        (aten.mul_.Tensor, "inplace"),
        (aten.resize_.default, "slow"),
        (aten.mul.out, "slow"),
    ],
)
def test_a_known_op_says_how_it_is_answered_the_next_time(func: Any, answer: str) -> None:
    cache = OpCache(may_be_known)
    x = Recorder().mode.new_tensor((4,), (1,), torch.float32, torch.device("cuda", 0))
    out = Recorder().mode.new_tensor((4,), (1,), torch.float32, torch.device("cuda", 0))
    result = x if func._schema.name.endswith("_") else out

    cache.learn("key", func, (x, x), {}, result)

    known = cache.find("key")
    assert known is not None
    assert known.answer == answer
    assert cache.find("another key") is None
    assert cache.find(None) is None


def test_pinned_arguments_are_part_of_what_was_called() -> None:
    cache = OpCache(may_be_known)
    x = torch.ones(2)

    plain, pinned = (
        cache.handled(aten.clone.default, (x,), {}, None, (is_pinned,))
        for is_pinned in (False, True)
    )

    assert plain.signature.arguments[0] == ("self", TensorSpec((2,), (1,), "float32", "cpu"))
    assert pinned.signature.arguments[0] == (
        "self", TensorSpec((2,), (1,), "float32", "cpu", is_pinned=True),
    )  # fmt: skip


def test_the_number_of_elements_of_a_range_hangs_on_floats() -> None:
    with neusight.forecast_on("H100"):
        lengths = [
            len(torch.arange(0.0, end, step, device="cuda"))
            for end, step in ((1.0, 0.5), (3.0, 0.5), (3.0, 1.0))
        ]

    assert lengths == [2, 6, 3]


def test_an_op_that_only_writes_returns_nothing_again() -> None:
    """As FSDP2 unpacks what it gathered: its first argument is what it reads."""

    def program() -> None:
        whole = torch.ones(6, device="cuda")
        parts = [torch.empty(2, device="cuda"), torch.empty(4, device="cuda")]
        for _ in range(2):
            aten.split_with_sizes_copy.out(whole, [2, 4], out=parts)

    assert len(named(calls(program), "split_with_sizes_copy")) == 2

"""Meta kernels give what torch's fake mode gives, and leave to it what only that knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neusight
from neusight.recording.dispatch import fake_kernels
from neusight.recording.dispatch.meta_kernels import by_meta_kernel, is_row_major, is_view

aten = torch.ops.aten


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def numbers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, device="cuda")


CALLS: dict[str, Callable[[], Any]] = {
    "sums of two types": lambda: matrix(4, 6) + matrix(6, dtype=torch.bfloat16),
    "transposed": lambda: matrix(4, 6).t() * matrix(6, 4),
    "expanded": lambda: matrix(4, 1).expand(4, 6) * 2,
    "product": lambda: matrix(4, 6) @ matrix(6, 3).t().contiguous().t(),
    "batched": lambda: torch.bmm(matrix(2, 4, 6), matrix(2, 6, 3)),
    "compared": lambda: matrix(4, 6) > 0,
    "chosen": lambda: torch.where(matrix(4, 6) > 0, matrix(4, 6), 0.0),
    "reduced": lambda: matrix(4, 6).sum(0, dtype=torch.float64),
    "mean": lambda: matrix(4, 6).mean(-1, keepdim=True),
    "softmax": lambda: torch.softmax(matrix(4, 6, dtype=torch.half), 0, dtype=torch.float32),
    "norm of rows": lambda: aten.native_layer_norm(
        matrix(4, 6, dtype=torch.bfloat16), [6], matrix(6), matrix(6), 1e-5
    ),
    "dropout": lambda: aten.native_dropout(matrix(4, 6).t(), 0.5, True),
    "embedding": lambda: torch.nn.functional.embedding(numbers(4, 2, 3), matrix(4, 6)),
    "loss": lambda: torch.nn.functional.cross_entropy(matrix(4, 6), numbers(6, 4)),
    "joined": lambda: torch.cat([matrix(4, 6), matrix(2, 6, dtype=torch.half)]),
    "to another type": lambda: matrix(4, 6).half(),
    "gaps": lambda: matrix(4, 6)[:, ::2].double(),
    "zeros alike": lambda: torch.zeros_like(matrix(4, 6).t()),
    "images": lambda: matrix(2, 3, 4, 4).to(memory_format=torch.channels_last) + 1,
    "lists": lambda: torch._foreach_mul([matrix(4, 6), matrix(3)], 2.0),
    "lists with gaps": lambda: torch._foreach_add([matrix(4, 6).t()], [matrix(6, 4)]),
    "lists of integers": lambda: torch._foreach_div([numbers(9, 4)], 2),
    "norms": lambda: torch._foreach_norm([matrix(4, 6), matrix(3)]),
    "sorted": lambda: matrix(4, 6).sort(dim=0),
    "variance": lambda: torch.var_mean(matrix(4, 6), dim=1),
    "cumulated": lambda: matrix(4, 6).cumsum(1, dtype=torch.float64),
    "gelu": lambda: torch.nn.functional.gelu(matrix(4, 6).t()),
}


def likeness(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return [likeness(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_fake_mode_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with neusight.forecast_on("H100"):
        by_kernel = likeness(CALLS[name]())
    with monkeypatch.context() as patch:
        patch.setattr(fake_kernels, "by_meta_kernel", lambda *ignored: NotImplemented)
        with neusight.forecast_on("H100"):
            by_mode = likeness(CALLS[name]())

    assert by_kernel == by_mode


@pytest.mark.parametrize(
    ("func", "operands"),
    [
        (aten.add_.Tensor, lambda: (matrix(4), matrix(4))),
        (aten.add.Tensor, lambda: (matrix(4), torch.ones(()))),
        (aten.add.Tensor, lambda: (matrix(4), matrix(5))),
        (aten.view.default, lambda: (matrix(4), [2, 2])),
        (aten.nonzero.default, lambda: (matrix(4),)),
        (aten._to_copy.default, lambda: (matrix(4, 6)[:, ::2],)),
    ],
)
def test_it_leaves_to_the_mode_what_only_that_knows(func: Any, operands: Any) -> None:
    """What writes, what mixes devices, what fails, what depends on values, what has gaps."""
    with neusight.forecast_on("H100"):
        arguments = operands()
        mode = arguments[0].fake_mode

        with mode.inside():
            assert by_meta_kernel(mode, func, arguments, {}) is NotImplemented


def test_views_are_known_by_their_op() -> None:
    assert is_view(aten.t.default)
    assert is_view(aten._unsafe_view.default)
    assert not is_view(aten.clone.default)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.empty(2, 3), True),
        (torch.empty(2, 3).t(), False),
        (torch.empty(2, 6)[:, ::2], False),
        (torch.empty(()), True),
    ],
)
def test_elements_one_behind_the_other_are_row_major(tensor: torch.Tensor, expected: bool) -> None:
    assert is_row_major(tensor) is expected

"""An index that is known to be out of bounds stops the program, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neusight


def on_gpu(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def at(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.long).cuda()


@pytest.mark.parametrize(
    "run",
    [
        lambda: nn.Embedding(6, 3).cuda()(torch.arange(6, device="cuda")),
        lambda: F.cross_entropy(on_gpu(2, 3), at(2, -100)),
        lambda: F.cross_entropy(on_gpu(3), torch.tensor(2).cuda()),
        lambda: F.cross_entropy(on_gpu(2, 3, 4, 4), torch.full((2, 4, 4), 2).cuda()),
        lambda: on_gpu(4, 2)[at(-4, 3), at(1, -2)],
        lambda: on_gpu(4, 2)[:, torch.tensor([1, -2])],
        lambda: on_gpu(4, 2)[on_gpu(4) > 0],
        lambda: torch.ones((), device="cuda").index_select(0, at(0)),
        lambda: on_gpu(4, 2).gather(-1, at(1, 0)[None]),
        lambda: on_gpu(4, 2).index_select(0, at()),
    ],
)
def test_indices_within_bounds_are_taken(run: Callable[[], object]) -> None:
    with neusight.forecast_on("H100"):
        run()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: nn.Embedding(4, 3).cuda()(torch.arange(6, device="cuda")), "embedding 4 0 4"),
        (lambda: nn.Embedding(4, 3).cuda()(at(1, -1)), "embedding -1 0 4"),
        (lambda: F.cross_entropy(on_gpu(2, 3), at(1, 3)), "nll_loss_forward 3 1 3"),
        (lambda: F.cross_entropy(on_gpu(2, 3), at(1, -1)), "nll_loss_forward -1 1 3"),
        (lambda: F.cross_entropy(on_gpu(3), torch.tensor(3).cuda()), "nll_loss_forward 3 0 3"),
        (
            lambda: F.cross_entropy(on_gpu(2, 3, 4, 4), torch.full((2, 4, 4), 3).cuda()),
            "nll_loss2d_forward 3 1 3",
        ),
        (lambda: on_gpu(4, 2)[at(4)], "index 4 0 4"),
        (lambda: on_gpu(4, 2)[at(-5)], "index -5 0 4"),
        (lambda: on_gpu(4, 2)[:, at(0, 2)], "index 2 1 2"),
        (lambda: on_gpu(4, 2).__setitem__(at(4), 1.0), "index_put_ 4 0 4"),
        (lambda: on_gpu(4, 2).gather(1, at(2, 0)[None]), "gather 2 1 2"),
        (lambda: on_gpu(4, 2).index_select(-1, at(2)), "index_select 2 1 2"),
        (lambda: F.one_hot(at(1, 3), 3), "scatter_ 3 1 3"),
        (lambda: on_gpu(4).scatter_add_(0, at(-1), on_gpu(1)), "scatter_add_ -1 0 4"),
        (lambda: on_gpu(4).scatter_reduce(0, at(4), on_gpu(1), "sum"), "scatter_reduce 4 0 4"),
        (lambda: on_gpu(4).index_fill_(0, at(4), 1.0), "index_fill_ 4 0 4"),
        (
            lambda: F.embedding_bag(at(1, 4), on_gpu(4, 2), at(0)),
            "_embedding_bag_forward_only 4 0 4",
        ),
        (lambda: on_gpu(4).index_add(0, at(4), on_gpu(1)), "index_add 4 0 4"),
    ],
)
def test_an_index_out_of_bounds_stops_the_program(
    run: Callable[[], object], message: str, times: int
) -> None:
    op, index, dimension, size = message.split()
    with neusight.forecast_on("H100"):
        for _ in range(times):
            with pytest.raises(RuntimeError, match="device-side assert triggered") as caught:
                run()

    assert f"aten::{op} at test_bounds.py:" in str(caught.value)
    assert str(caught.value).endswith(
        f": index {index} is out of bounds for dimension {dimension} with size {size}"
    )


def test_indices_that_rest_on_an_invented_value_are_not_judged() -> None:
    with neusight.forecast_on("H100"):
        table = nn.Embedding(1, 3).cuda()
        table(on_gpu(4, 2).argmax(1))
        read = int(on_gpu(4).argmax())
        table(at(read))
        table(at(5))

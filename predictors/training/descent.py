"""Trains small networks with torch, on one core: equal inputs and seeds give equal weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]

#: A matrix and its biases for each layer.
Layers = list[tuple["torch.Tensor", "torch.Tensor"]]


class Descent(NamedTuple):
    """How AdamW goes through the rows, and the share of the steps in which its rate rises."""

    epochs: int
    batch_rows: int
    learning_rate: float
    weight_decay: float
    warm_up_share: float


@contextmanager
def one_core() -> Iterator[None]:
    """Inside, torch uses one thread: the order of sums, and so the weights, depends on it."""
    import torch

    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def first_layers(sizes: Sequence[int], draw: Callable[[torch.Tensor, int], torch.Tensor]) -> Layers:
    """Matrices that `draw` fills, given their number of inputs, and biases of zero."""
    import torch

    return [
        (
            draw(torch.empty(after, before), before).requires_grad_(),
            torch.zeros(after, requires_grad=True),
        )
        for before, after in pairwise(sizes)
    ]


def descend(
    layers: Layers,
    columns: Sequence[torch.Tensor],
    loss: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    descent: Descent,
    generator: torch.Generator,
    progress: Callable[[float], None] = lambda share: None,
) -> list[tuple[Floats, Floats]]:
    """The layers moved to a small `loss` of the columns' rows, batch by batch in an order drawn
    again each epoch."""
    import torch

    count = len(columns[0])
    batch = min(descent.batch_rows, count)
    num_steps = descent.epochs * (count // batch)
    optimizer = torch.optim.AdamW(
        [part for layer in layers for part in layer],
        lr=descent.learning_rate,
        weight_decay=descent.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        descent.learning_rate,
        total_steps=num_steps + 1,
        pct_start=descent.warm_up_share,
    )
    step = 0
    for _ in range(descent.epochs):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - batch + 1, batch):
            rows = order[start : start + batch]
            missed = loss([column[rows] for column in columns])
            optimizer.zero_grad()
            torch.autograd.backward(missed)
            optimizer.step()
            schedule.step()
            step += 1
            progress(step / num_steps)
    return [(_array(matrix), _array(bias)) for matrix, bias in layers]


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().numpy().astype(np.float64)
    return found

"""Optimizers are known while they live, and what they train for longer."""

from __future__ import annotations

import gc

import torch
from torch import nn

from neusight.recording.steps.optimizers import Optimizers


def test_an_optimizer_that_was_made_but_never_stepped_is_waited_for() -> None:
    known = Optimizers()
    first, second = (torch.optim.SGD(nn.Linear(2, 2).parameters()) for _ in range(2))
    for optimizer in (first, second):
        known.created(optimizer)

    known.stepped(first)
    assert known.any_waits
    known.stepped(second)
    assert not known.any_waits


def test_only_modules_with_parameters_of_an_optimizer_are_trained() -> None:
    known = Optimizers()
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)

    known.record_trained(torch.optim.SGD(student.parameters()))

    assert known.any_train
    assert known.train(nn.Sequential(teacher, student))
    assert not known.train(teacher)


def test_an_optimizer_that_is_gone_is_not_waited_for() -> None:
    known = Optimizers()
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    known.created(optimizer)
    assert known.any_alive

    del optimizer
    gc.collect()

    assert (known.any_alive, known.any_waits) == (False, False)
    assert known.any_train

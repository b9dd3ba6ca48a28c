"""Operators of what a program repeats: those from before, wherever it does the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate, cycle, pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

import neusight
from neusight.recording.dispatch import operator_history
from neusight.recording.dispatch.operator_history import OperatorHistory, running_after
from neusight.recording.recording import Alloc, Free, Operator
from neusight.recording.tape import CallToken

LINEAR, NORM = CallToken("aten::linear"), CallToken("aten::layer_norm")
ALIKE = operator_history._ALIKE


def test_entries_are_known_once_enough_in_a_row_came_before_with_the_same_operators() -> None:
    history = OperatorHistory()
    layer = [("mm", (LINEAR,)), ("add", (None,)), ("norm", (NORM,)), ("relu", (None,))]

    found, known = [], []
    for _ in range(ALIKE):
        for key, events in layer:
            found.append(history.add(key, events))
            known.append(history.is_known)

    assert known.index(True) == len(layer) + ALIKE - 1
    assert found[-1] in found[:-1]


def test_the_same_entries_with_other_operators_are_something_else() -> None:
    history = OperatorHistory()

    known = []
    for events in [*[((LINEAR,), (None,))] * ALIKE, ((), ())]:
        history.add("mm", events[0])
        history.add("add", events[1])
        known.append(history.is_known)

    assert known[-2:] == [True, False]
    assert history.last.events == ()


def test_a_run_of_one_op_is_not_known() -> None:
    history = OperatorHistory()

    for _ in range(4 * ALIKE):
        history.add("copy", (LINEAR, None))

    assert not history.is_known


def test_what_was_missing_is_filled_in_the_next_time() -> None:
    history = OperatorHistory()
    before = history.last = history.add("mm", ())
    gap = history.add_gap("norm", ())
    behind = history.add("relu", ())
    assert history.num_gaps == 1
    history.last = before
    assert history.may_begin_gap()
    history.add("norm", (NORM,))
    history.add("relu", (None,))

    assert (gap.events, behind.events) == ((NORM,), (None,))
    assert history.num_gaps == 0
    history.last = before
    assert not history.may_begin_gap()


def test_what_is_missing_in_two_places_is_filled_in_each() -> None:
    history = OperatorHistory()
    places, ends = [], [(None, LINEAR), (None,)]
    for number, behind in enumerate(["mm", "alias"]):
        places.append(history.add(f"permute {number}", ()))
        history.add_gap("view", ())
        history.add(behind, ())

    for place, behind, end in zip(places, ["mm", "alias"], ends, strict=True):
        history.last = place
        assert history.may_begin_gap()
        history.add("view", (NORM,))
        history.add(behind, end)

    filled = [place.following["view"].following for place in places]
    assert [filled[0]["mm"].events, filled[1]["alias"].events] == ends


def test_what_runs_is_what_began_and_has_not_ended() -> None:
    assert running_after((LINEAR, 3, NORM, None), ()) == (LINEAR,)
    assert running_after((None, None), (NORM,)) == ()


class Transformer(nn.Module):
    """Layers that repeat, between others, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.head(self.layers(self.embedding(tokens)))
        return functional.cross_entropy(out.flatten(0, 1), tokens.flatten())


class Autocast(Transformer):
    """Copies of weights in halves, whose gradients are copied in nodes of their own."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return super().forward(tokens)


class ChangingDtype(Transformer):
    """The same ops with another type in each step: in all of them copies, as in `Autocast`."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes = cycle((torch.bfloat16, torch.float16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", next(self.dtypes)):
            return super().forward(tokens)


class Unrolled(nn.Module):
    """A loop without modules, and images through blocks that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        sizes = (8, 8, 8, 16, 16, 16)
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(sizes)
        ]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state = tokens[:, :8].to(torch.float32)
        for _ in range(12):
            state = functional.layer_norm(functional.linear(state, self.weight), (8,)) + state
        images = state.reshape(-1, 8, 1, 1).expand(-1, 8, 6, 6)
        out: torch.Tensor = functional.dropout(self.blocks(images), 0.1).mean()
        return out


def operators_of(make: Callable[[], nn.Module]) -> list[list[Operator]]:
    """Those of steps of training on a GPU, around entries that are not about memory."""
    with neusight.forecast_on("H100") as forecast:
        model = make().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            tokens = torch.randint(50, (2, 8), device="cuda")
            model(tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            forecast.step()
    found: list[list[Operator]] = []
    for step in forecast.recording.steps:
        if step.kind != "setup":
            places = [not isinstance(entry, (Alloc, Free)) for entry in step.entries]
            at = [0, *accumulate(places)]
            found.append(
                [
                    # Where a node ends is not known if it began unseen, as it was new.
                    o._replace(first=at[o.first], last=0 if o.is_node else at[o.last])
                    for o in step.operators
                ]
            )
    return found


class Alternating(Transformer):
    """Every second step is under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = cycle((False, True))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=next(self.turns)):
            return super().forward(tokens)


def test_each_kind_of_step_that_takes_turns_has_its_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operator_history, "_ALIKE", 10**9)
    *_, plain, autocast = operators_of(Alternating)
    *_, always_autocast = operators_of(Autocast)

    assert Counter(o.name for o in autocast) == Counter(o.name for o in always_autocast)
    assert len(plain) != len(autocast)


@pytest.mark.parametrize("model", [Transformer, Autocast, ChangingDtype, Unrolled])
def test_steps_show_the_operators_that_they_would_show_if_all_were_followed(
    model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *found = operators_of(model)
    monkeypatch.setattr(operator_history, "_ALIKE", 10**9)
    first_followed, *followed = operators_of(model)

    assert found == followed
    # What an optimizer does on the CPU once its states are made: they repeat, and it is new.
    missing = Counter(o.name for o in first_followed) - Counter(o.name for o in first)
    assert all(name.endswith(("add_", "detach_")) for name in missing)

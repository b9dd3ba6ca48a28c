"""Experts get equal shares of the tokens where it is not known what a router prefers."""

from __future__ import annotations

import pytest
import torch

import neusight


@pytest.mark.parametrize("count", ["bincount", "histc", "one_hot"])
def test_each_expert_gets_its_share(count: str) -> None:
    with neusight.forecast_on("H100") as forecast:
        chosen = torch.randn(96, 8, device="cuda").topk(2, dim=-1).indices
        if count == "bincount":
            shares = torch.bincount(chosen.flatten(), minlength=8)
        elif count == "histc":
            shares = torch.histc(chosen.flatten().float(), bins=8, min=0, max=7)
        else:
            shares = torch.nn.functional.one_hot(chosen, 8).sum((0, 1))
        found = shares.tolist()
        first = chosen[0].tolist()

    assert found == [24] * 8
    assert len(set(first)) == 2
    assert any("invented" in text for text in forecast.recording.warnings)


def test_what_does_not_divide_gives_the_first_experts_one_more() -> None:
    with neusight.forecast_on("H100"):
        unknown = torch.randint(0, 3, (10,), device="cuda")
        found = torch.bincount(unknown, minlength=3).tolist()

    assert found == [4, 3, 3]


@pytest.mark.parametrize("is_in_place", [False, True])
def test_experts_whose_tokens_are_counted_in_floats_get_their_share(is_in_place: bool) -> None:
    """As JetMoE's router does: ones in zeros, then sums, which split the tokens."""
    with neusight.forecast_on("H100") as forecast:
        chosen = torch.randn(96, 8, device="cuda").topk(2, dim=1).indices
        zeros = torch.zeros(96, 8, device="cuda")
        gates = zeros.scatter_(1, chosen, 1) if is_in_place else zeros.scatter(1, chosen, 1)
        sizes = gates.long().sum(0).tolist()
        in_floats = gates.sum(0).tolist()
        parts = torch.empty(192, 4, device="cuda").split(sizes)

    assert sizes == in_floats == [24] * 8
    assert len(parts) == 8
    assert any("invented" in text for text in forecast.recording.warnings)


def test_known_choices_are_counted() -> None:
    with neusight.forecast_on("H100") as forecast:
        found = torch.bincount(torch.tensor([1, 1, 4], device="cuda"), minlength=3).tolist()

    assert found == [0, 2, 0, 0, 1]
    assert not forecast.recording.warnings


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_weights_are_added_in_floats(dtype: torch.dtype) -> None:
    choices, weights = torch.tensor([1, 1, 4]), torch.ones(3, dtype=dtype)
    expected = torch.bincount(choices, weights, 3)

    with neusight.forecast_on("H100"):
        found = torch.bincount(choices.cuda(), weights.cuda(), 3)

        assert (found.dtype, found.dim()) == (expected.dtype, 1)


def test_words_are_not_taken_for_experts() -> None:
    with neusight.forecast_on("H100"):
        best = torch.randn(2, 50_000, device="cuda").topk(2).indices
        found = best.tolist()

    assert found == [[0, 1], [0, 1]]  # each row has the same, as if it were alone


def test_one_choice_of_each_router_is_spread_over_all() -> None:
    """Switch Transformers: one expert a token, by `argmax` and `one_hot`."""
    with neusight.forecast_on("H100"):
        scores = torch.randn(2, 6, 4, device="cuda").softmax(-1)
        chosen = torch.nn.functional.one_hot(scores.argmax(-1), num_classes=4)
        kept = chosen * (chosen.cumsum(-2) <= 64)

        assert kept.sum((0, 1)).tolist() == [3, 3, 3, 3]
        assert [int(row.nonzero().shape[0]) for row in kept.view(-1, 4).T] == [3, 3, 3, 3]


@pytest.mark.parametrize(("shape", "dim"), [((50_000,), -1), ((3, 50_000), -1), ((50_000, 3), 0)])
def test_the_best_of_many_are_different_ones(shape: tuple[int, ...], dim: int) -> None:
    with neusight.forecast_on("H100"):
        best = torch.randn(*shape, device="cuda").topk(4, dim=dim).indices
        beams = [best.select(dim, place).unique().tolist() for place in range(4)]
        one = {int(place) for place in best.flatten()[:: 1 if dim == -1 else 3][:4]}

    assert beams == [[0], [1], [2], [3]]
    assert one == {0, 1, 2, 3}

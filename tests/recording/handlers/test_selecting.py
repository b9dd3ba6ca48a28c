"""Ops return as many elements as values say, known or assumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import neusight
from neusight.recording.recording import Synchronize
from recorded_programs import values_of


def test_masks_with_known_values_count_exactly() -> None:
    def program() -> list[Any]:
        positions = torch.arange(8, device="cuda")
        mask = positions < 3
        rows = torch.randn(8, 5, device="cuda")
        rows[mask] = 0.0
        return [
            tuple(rows[mask].shape), tuple(mask.nonzero().shape),
            tuple(torch.masked_select(rows[:, 0], mask).shape),
            tuple(torch.where(mask)[0].shape), mask.sum().item(),
            tuple(torch.repeat_interleave(rows, positions, dim=0).shape),
        ]  # fmt: skip

    assert values_of(program) == [(3, 5), (3, 1), (3,), (3,), 3, (28, 5)]


def test_known_values_are_selected_and_distinguished() -> None:
    def program() -> list[Any]:
        x = torch.tensor([3, 1, 3, 2], device="cuda")
        unique, inverse = torch.unique(x, return_inverse=True)
        return [unique.tolist(), inverse.tolist(), (x == 3).nonzero().flatten().tolist()]

    assert values_of(program) == [[1, 2, 3], [2, 0, 2, 1], [0, 2]]


def test_a_mask_is_broadcast_before_it_selects() -> None:
    def program() -> list[Any]:
        rows = torch.randn(4, 6, device="cuda")
        known = torch.tensor([[True], [False], [True], [False]], device="cuda")
        return [tuple(rows.masked_select(known).shape), tuple(rows.unique(dim=0).shape)]

    assert values_of(program) == [(12,), (2, 6)]


def test_unknown_masks_select_half() -> None:
    def program() -> tuple[int, ...]:
        return tuple((torch.randn(1000, device="cuda") > 0).nonzero().shape)

    assert values_of(program) == (500, 1)


def test_what_unknown_masks_select_lies_at_equal_distances() -> None:
    def program() -> list[list[int]]:
        return (torch.randn(2, 50, device="cuda") > 0).nonzero().tolist()

    assert values_of(program) == [[row, column] for row in (0, 1) for column in range(0, 50, 2)]


def test_positions_lie_in_memory_axis_by_axis() -> None:
    strides = values_of(lambda: torch.ones(4, 3, device="cuda").nonzero().stride())

    assert strides == (1, 12)


def test_lengths_of_known_sequences_split_what_they_are_packed_into() -> None:
    """As vision towers find where each image of a batch ends."""
    with neusight.forecast_on("H100") as forecast:
        grids = torch.tensor([[2, 4, 4], [1, 2, 2]]).to("cuda")
        rows = torch.repeat_interleave(grids[:, 1] * grids[:, 2], grids[:, 0])
        ends = torch.nn.functional.pad(rows.cumsum(0), (1, 0))
        packed = torch.randn(36, 8, device="cuda")
        parts = packed.split((ends[1:] - ends[:-1]).tolist())

    assert [len(part) for part in parts] == [16, 16, 4]
    assert "invented" not in str(forecast.warnings)


def test_what_known_masks_choose_of_known_values_is_known() -> None:
    with neusight.forecast_on("H100"):
        values = torch.tensor([[1, 2, 3], [4, 5, 6]]).to("cuda")
        chosen = values[values % 2 == 0]
        assert chosen.tolist() == [2, 4, 6]


def test_a_mask_of_the_cpu_counts_exactly() -> None:
    def program() -> tuple[int, ...]:
        return tuple(torch.randn(30, 4, device="cuda")[torch.arange(30) > 20].shape)

    assert values_of(program) == (9, 4)


def test_as_many_values_are_put_as_an_unknown_mask_selects() -> None:
    """They say how many these are: nothing is counted but what the host waits for."""
    with neusight.forecast_on("H100") as forecast:
        rows, values = torch.randn(30, 4, device="cuda"), torch.zeros(7, 4, device="cuda")
        rows[torch.randn(30, device="cuda") > 0] = values
        other = torch.index_put(rows, (torch.randn(30, device="cuda") > 0,), values)
        assert (other.shape, other.data_ptr() != rows.data_ptr()) == ((30, 4), True)

    waits = [e.reason for e in forecast.recording.steps[0].entries if isinstance(e, Synchronize)]
    assert waits == ["nonzero", "nonzero"]


def test_unknown_repeats_are_one_each() -> None:
    def program() -> tuple[int, ...]:
        repeats = torch.randint(5, (10,), device="cuda")
        return tuple(torch.randn(10, 3, device="cuda").repeat_interleave(repeats, 0).shape)

    assert values_of(program) == (10, 3)


@pytest.mark.parametrize(
    "lengths",
    [[3, 2, 1], [1, 2], [3, 0], [[3, 2]], [4, 2], [3, 1], [2, 2]],
    ids=["too many", "unsorted", "none", "2D", "too long", "some", "all"],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_of_sequences_are_checked_as_on_the_cpu(lengths: Any, batch_first: bool) -> None:
    def packed() -> Any:
        data = torch.randn((2, 3, 4) if batch_first else (3, 2, 4)).to(device)
        try:
            found = pack_padded_sequence(data, torch.tensor(lengths), batch_first)
        except RuntimeError as error:
            return str(error)
        return tuple(found.data.shape), found.batch_sizes.tolist()

    device = "cpu"
    expected = packed()
    device = "cuda"

    assert values_of(packed) == expected


def test_lengths_of_sequences_on_a_gpu_are_refused() -> None:
    def pack() -> None:
        with pytest.raises(RuntimeError) as caught:
            pack_padded_sequence(
                torch.randn(3, 2, 4, device="cuda"), torch.tensor([3, 2], device="cuda")
            )
        assert str(caught.value) == (
            "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"
        )

    values_of(pack)

"""What the shapes of an input say of samples and tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import neusight
from neusight.recording.inputs.sizes import (
    InputSize,
    size_of,
    size_of_loaded,
    tensors_held_by,
    tensors_in,
)


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def test_tensors_are_found_in_containers_in_order() -> None:
    first, second, third = torch.zeros(1), torch.zeros(2), torch.zeros(3)

    found = tensors_in({"a": [first, "text"], "b": (second,)}, None, third)

    assert [tensor.numel() for tensor in found] == [1, 2, 3]


@pytest.mark.parametrize(("depth", "count"), [(5, 1), (6, 0)])
def test_tensors_are_held_by_objects_in_objects_down_to_a_depth(depth: int, count: int) -> None:
    held: object = torch.zeros(2, 2)
    for level in range(depth):
        held = SimpleNamespace(inside=[], more=held) if level % 2 else [held]

    assert len(list(tensors_held_by(held, num_dims=2))) == count


def test_the_first_tensor_with_a_batch_decides() -> None:
    assert size_of([torch.zeros(4), torch.zeros(8, 3, 2, 2), ints(8, 20)]) == InputSize(
        "input", (8, 3, 2, 2), samples=8
    )


@pytest.mark.parametrize("tensors", [[], [torch.zeros(4)], [torch.tensor(3.0)]])
def test_vectors_alone_say_nothing(tensors: list[torch.Tensor]) -> None:
    assert size_of(tensors) is None


@pytest.mark.parametrize(
    "joined", [ints(2, 30), torch.eye(10), torch.eye(10).to_sparse()], ids=["pairs", "dense", "coo"]
)
def test_nodes_of_a_graph_are_known_by_what_joins_them(joined: torch.Tensor) -> None:
    found = size_of([torch.zeros(10, 4), joined])

    assert found is not None
    assert (found.what, found.samples) == ("graph", None)


def test_a_mask_beside_a_sequence_is_no_graph() -> None:
    found = size_of([torch.zeros(4, 16, 8), torch.zeros(16, 16)])

    assert found is not None
    assert found.samples == 4


def test_images_have_their_batch_first_in_any_model() -> None:
    image, sequence = torch.zeros(4, 3, 8, 8), torch.zeros(35, 4, 8)

    assert [size.samples for size in map(sequence_first, (image, sequence)) if size] == [4, None]


def sequence_first(tensor: torch.Tensor) -> InputSize | None:
    return size_of([tensor], batch_first=False)


def test_two_views_of_each_item_are_no_more_samples() -> None:
    found = size_of_loaded([torch.zeros(64, 3, 8, 8)], num_items=32)

    assert found is not None
    assert found.samples == 32


def test_a_last_batch_has_the_items_that_are_left() -> None:
    rest = size_of_loaded([torch.zeros(5, 3)], num_items=32)
    labels = size_of_loaded([torch.zeros(5)], num_items=32)

    assert [size.samples for size in (rest, labels) if size] == [5, 5]


def test_rows_of_unequal_length_are_counted() -> None:
    rows = torch.nested.nested_tensor([torch.zeros(3, 8), torch.zeros(5, 8)], layout=torch.jagged)

    assert size_of([rows]) == InputSize("input", (2,), samples=2)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4)])
def test_positions_beside_as_many_tokens_are_no_graph(shape: tuple[int, int]) -> None:
    """A single sequence decodes its next token: ids, mask and positions are [1 x 1]."""
    ids = torch.zeros(shape, dtype=torch.long)

    found = size_of([ids, torch.ones_like(ids)])

    assert found is not None
    assert (found.what, found.samples, found.tokens) == ("token ids", shape[0], ids.numel())
    features = torch.zeros(4, 4)
    assert size_of([features, torch.zeros(4, 4)]) == ("graph", (4, 4), None, None)


def test_a_module_is_exported_for_any_number_of_rows() -> None:
    with neusight.forecast_on("H100"):
        module = torch.nn.Linear(4, 3).cuda()
        rows = torch.export.Dim("rows", min=1, max=64)
        data = torch.randn(2, 4, device="cuda")
        exported = torch.export.export(module, (data,), dynamic_shapes=({0: rows},))

        assert exported.module()(torch.randn(7, 4, device="cuda")).shape == (7, 3)

"""Every storage on the GPU is followed from its allocation to its end."""

from __future__ import annotations

import gc

import torch
from torch import nn

from neusight.recording.recording import Alloc, Free, OpCall, StorageRef
from recorded_programs import entries


def test_every_storage_is_allocated_once_and_views_none() -> None:
    def program() -> None:
        x = torch.empty(1000, device="cuda")
        x.view(10, 100).t()[2:].add_(1)
        x + 1
        x.to(torch.float32)

    allocations = [entry for entry in entries(program) if isinstance(entry, Alloc)]
    assert [(a.ordinal, a.num_bytes, a.op) for a in allocations] == [
        (0, 4000, "aten::empty"), (1, 4000, "aten::add")
    ]  # fmt: skip


def test_a_storage_is_freed_when_its_last_tensor_is() -> None:
    def program() -> None:
        x = torch.empty(1000, device="cuda")
        view = x[10:]
        del x
        gc.collect()
        marker = torch.empty(1, device="cuda")
        del view
        marker.add_(1)

    kinds = [type(e).__name__ for e in entries(program) if isinstance(e, Alloc | Free | OpCall)]
    assert kinds == ["OpCall", "Alloc", "OpCall", "OpCall", "Alloc", "Free", "OpCall", "Free"]


def test_parameters_gradients_and_states_are_distinguished() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.BatchNorm1d(100)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(4, 100, device="cuda")).sum().backward()
            optimizer.step()

    sizes = {
        (entry.kind, entry.num_bytes)
        for entry in entries(program)
        if isinstance(entry, Alloc) and entry.num_bytes == 40_000
    }
    assert {kind for kind, _ in sizes} >= {"parameter", "gradient", "optimizer_state"}
    kinds = {entry.kind for entry in entries(program) if isinstance(entry, Alloc)}
    assert "buffer" in kinds


def test_memory_that_a_storage_gives_back_is_free_until_it_is_taken_again() -> None:
    """As FSDP does with the gathered parameters of a layer."""

    def program() -> None:
        parameter = torch.empty(1000, device="cuda")
        storage = parameter.untyped_storage()
        storage.resize_(0)
        torch.empty(1, device="cuda")
        storage.resize_(4000)
        parameter.add_(1)
        del parameter, storage

    reported = [
        f"{e.num_bytes} {e.op}" if isinstance(e, Alloc) else e
        for e in entries(program)
        if isinstance(e, Alloc | Free)
    ]
    assert reported == [
        "4000 aten::empty", Free(StorageRef(0, 0)),
        "4 aten::empty", Free(StorageRef(0, 1)),
        "4000 aten::resize_", Free(StorageRef(0, 2)),
    ]  # fmt: skip


def test_a_parameter_that_gets_its_memory_back_still_is_one() -> None:
    def program() -> None:
        layer = nn.Linear(100, 10, bias=False).cuda()
        layer(torch.ones(4, 100, device="cuda"))
        storage = layer.weight.untyped_storage()
        storage.resize_(0)
        storage.resize_(4000)

    again = [e for e in entries(program) if isinstance(e, Alloc) and e.op == "aten::resize_"]
    assert [(entry.num_bytes, entry.kind) for entry in again] == [(4000, "parameter")]


def test_a_forecast_gives_torchs_resize_back() -> None:
    before = torch.UntypedStorage.resize_

    entries(lambda: torch.empty(1, device="cuda").untyped_storage().resize_(0))

    assert torch.UntypedStorage.resize_ is before

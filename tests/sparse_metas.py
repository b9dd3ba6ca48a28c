"""What distinguishes two sparse tensors without their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import neusight


def coo(device: str, **kwargs: Any) -> torch.Tensor:
    """2 x 3 with three elements, one of which stands twice."""
    indices = torch.tensor([[1, 0, 1, 1], [2, 2, 0, 2]], device=device)
    values = torch.tensor([3.0, 4.0, 5.0, 6.0], device=device)
    return torch.sparse_coo_tensor(indices, values, (2, 3), **kwargs)


def hybrid(device: str) -> torch.Tensor:
    """2 x 3 with three elements, each a row of four."""
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]], device=device)
    values = torch.arange(12.0, device=device).view(3, 4)
    return torch.sparse_coo_tensor(indices, values, (2, 3, 4), is_coalesced=True)


def bsr(device: str) -> torch.Tensor:
    """4 x 6 with three blocks of 2 x 3, its size read off them."""
    return torch.sparse_bsr_tensor(
        torch.tensor([0, 1, 3], device=device),
        torch.tensor([1, 0, 1], device=device),
        torch.ones(3, 2, 3, device=device),
    )


def csr(device: str, **kwargs: Any) -> torch.Tensor:
    """2 x 3 with three elements."""
    return torch.sparse_csr_tensor(
        torch.tensor([0, 1, 3], device=device),
        torch.tensor([2, 0, 2], device=device),
        torch.tensor([3.0, 4.0, 5.0], device=device),
        (2, 3),
        **kwargs,
    )


def meta(value: Any) -> Any:
    """Shapes, dtypes, strides and counts of a tensor or of several; other values as they are. The
    strides of parts are those of the CPU's own algorithms and left out."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [meta(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    whole = (tuple(value.shape), value.dtype, value.layout)
    if value.layout is torch.strided:
        return (*whole, value.stride())
    if value.layout is torch.sparse_coo:
        return (*whole, value.is_coalesced(), _parts(value._indices(), value._values()))
    by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    parts = (
        (value.crow_indices(), value.col_indices())
        if by_row
        else (value.ccol_indices(), value.row_indices())
    )
    return (*whole, _parts(*parts, value.values()))


def _parts(*parts: torch.Tensor) -> list[Any]:
    return [(tuple(part.shape), part.dtype) for part in parts]


def on_both(run: Callable[[str], Any]) -> tuple[Any, Any, neusight.Forecast]:
    """What a program has made on the CPU and in a forecast, and the forecast."""
    expected = meta(run("cpu"))
    with neusight.forecast_on("H100") as forecast:
        found = meta(run("cuda"))
    assert forecast.unmapped == []
    return expected, found, forecast

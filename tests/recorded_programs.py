"""What programs do inside a forecast: their values, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

import neusight
from neusight.recording.recording import Entry, OpCall, Recording

Kind = TypeVar("Kind", bound=Entry)


class Block(nn.Module):
    """Modules within each other, of which the outermost has an op of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)
        self.outer = nn.Sequential(nn.GELU(), nn.Linear(8, 8, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(self.inner(x)).sin()
        return out


def data() -> torch.Tensor:
    return torch.ones(4, 8, device="cuda")


def values_of(program: Any) -> Any:
    """What the program returns inside a forecast."""
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        return program()


def invented(forecast: neusight.Forecast) -> str:
    """The warning about invented values."""
    return next((text for text in forecast.warnings if "invented" in text), "")


def forecast_of(program: Callable[[], object], **options: Any) -> neusight.Forecast:
    with neusight.forecast_on("H100", **options) as forecast:
        program()
    return forecast


def entries_of(recorded: neusight.Forecast | Recording, kind: type[Kind]) -> list[Kind]:
    """The entries of that kind of all steps, in order."""
    recording = recorded if isinstance(recorded, Recording) else recorded.recording
    return [e for step in recording.steps for e in step.entries if isinstance(e, kind)]


def entries(program: Any, **options: Any) -> list[Entry]:
    steps = forecast_of(program, **options).recording.steps
    return [entry for step in steps for entry in step.entries]


def calls(program: Any) -> list[OpCall]:
    return entries_of(forecast_of(program), OpCall)


def named(found: list[OpCall], op: str) -> list[OpCall]:
    return [call for call in found if call.signature.op == f"aten::{op}"]


def where(found: list[OpCall], op: str) -> list[tuple[str, str]]:
    """Phase and module of each call of the op."""
    return [(call.phase, call.module) for call in named(found, op)]

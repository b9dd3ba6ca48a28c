"""What a call gives on the CPU and inside a forecast: shapes, dtypes, strides, devices."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy
import torch
from torch.utils import _pytree as pytree

import neusight
from covered.cases import Outcome, outcome_of, plain
from neusight.predictors.errors import NeusightError

_T = TypeVar("_T")

#: The GPU of all forecasts here: it has every dtype.
GPU = "H100"

#: Why nothing was compared where a database draws other samples for another device.
OTHER_SAMPLES = "its samples are others on another device"

#: Samples that are drawn of a database, and how many of them are tried.
NUM_DRAWN = 48
NUM_TRIED = 6

VERSION = f"torch {torch.__version__.partition('+')[0]}"


@dataclass(frozen=True)
class Tensor:
    """What is compared of a tensor. Strides of axes of length 1, and of tensors without elements,
    mean nothing and are 0; a device is that of the program, so `cuda` where the CPU has `cpu`."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    layout: str = "strided"
    is_on_device: bool = True

    def __str__(self) -> str:
        layout = "" if self.layout == "strided" else f" {self.layout}"
        strides = f" strides {list(self.strides)}" if self.strides else ""
        device = "" if self.is_on_device else " on the CPU"
        return f"{self.dtype}{list(self.shape)}{layout}{strides}{device}"


@dataclass(frozen=True)
class Value:
    """What is compared of a number, a string or nothing: its type, and of arguments its value."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.kind


#: An argument that names the device.
DEVICE = Value("device")

Leaf = Tensor | Value
Leaves = tuple[Leaf, ...]


def leaves(
    tree: object, device: str, *, with_strides: bool = True, with_values: bool = False
) -> Leaves:
    """What is compared of all tensors and values in a tree."""
    found = pytree.tree_leaves(tree)
    return tuple(_leaf(leaf, device, with_strides, with_values) for leaf in found)


def _leaf(leaf: Any, device: str, with_strides: bool, with_values: bool) -> Leaf:
    if not isinstance(leaf, torch.Tensor):
        is_known = with_values and isinstance(leaf, (bool, int, float, complex, str, torch.dtype))
        if isinstance(leaf, (str, torch.device)) and torch.device(device) == _device(leaf):
            return DEVICE
        return Value(type(leaf).__name__, repr(leaf) if is_known else "")
    layout = str(leaf.layout).removeprefix("torch.")
    strides: tuple[int, ...] = ()
    if layout == "strided" and with_strides and leaf.numel() and not leaf.is_nested:
        strides = tuple(
            0 if length == 1 else stride
            for length, stride in zip(leaf.shape, leaf.stride(), strict=True)
        )
    dtype = str(leaf.dtype).removeprefix("torch.")
    return Tensor(tuple(leaf.shape), dtype, strides, layout, leaf.device.type == device)


def _device(leaf: str | torch.device) -> torch.device | None:
    try:
        return torch.device(torch.device(leaf).type)
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Result:
    """What a call gave, or the error it raised."""

    out: Leaves = ()
    gradients: Leaves = ()
    error: Exception | None = None


@dataclass(frozen=True)
class Sample:
    """One call that can be made: what goes in, and how to make it."""

    given: Leaves
    run: Callable[[], Result]

    @property
    def is_bound(self) -> bool:
        """Whether an argument says on which device it runs; else it is the CPU everywhere."""
        return any(leaf == DEVICE or isinstance(leaf, Tensor) for leaf in self.given)

    def result(self) -> Result:
        """Makes the call."""
        try:
            return self.run()
        except Exception as error:
            return Result(error=error)


#: Draws calls for a device, `cpu` or `cuda`, always in the same order.
Draw = Callable[[str], Iterable[Sample]]


#: What CUDA gives, of what went in and what the CPU gave.
AsCuda = Callable[[Leaves, Leaves], Leaves]


def _drawn(draw: Draw, device: str) -> list[Sample]:
    """So many samples, from the same seeds every time."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    return list(itertools.islice(draw(device), NUM_DRAWN))


def _pairs(wanted: list[Sample], found: list[Sample]) -> list[tuple[Sample, Sample]]:
    """The same calls on both devices: a database may draw others, or in another order."""
    left = list(found)
    pairs = []
    for want in wanted:
        for have in left:
            if want.given == have.given:
                left.remove(have)
                pairs.append((want, have))
                break
    return pairs


def _spread(found: list[_T]) -> list[_T]:
    """So many of a list: the first, the last and some between."""
    if len(found) <= NUM_TRIED:
        return found
    return [found[place * (len(found) - 1) // (NUM_TRIED - 1)] for place in range(NUM_TRIED)]


def compared(
    draw: Draw,
    *,
    has_free_sizes: bool = False,
    is_whole: bool = False,
    as_cuda: AsCuda | None = None,
    note: str = "",
) -> Outcome:
    """How calls inside a forecast compare with the same on the CPU. `has_free_sizes`: sizes hang on
    values, so those of a forecast are invented. `is_whole`: every sample is tried.
    `as_cuda`: what CUDA gives instead of the CPU's results. `note` is kept with what is ok."""
    try:
        wanted = _drawn(draw, "cpu")
    except Exception as error:
        return Outcome("skipped", plain(f"the CPU: {type(error).__name__}: {error}"), VERSION)
    if not wanted:
        return Outcome("skipped", "the database has no sample of it", VERSION)
    with neusight.forecast_on(GPU) as forecast:
        pairs = _pairs(wanted, _drawn(draw, "cuda"))
        pairs = pairs if is_whole else _spread(pairs)
        found = [have.result() for _, have in pairs]
    if not pairs:
        return Outcome("skipped", OTHER_SAMPLES, VERSION)
    results = [(want, want.result(), have) for (want, _), have in zip(pairs, found, strict=True)]
    if as_cuda is not None:
        results = [
            (sample, replace(want, out=as_cuda(sample.given, want.out)), have)
            for sample, want, have in results
        ]
    wrong = _wrong(results, has_free_sizes)
    if wrong is not None:
        return wrong
    late = [kernel.key for kernel, estimate in forecast.kernels if not _is_time(estimate)]
    if late:
        return Outcome("failed", plain(f"no finite time of {late[0]}"), VERSION)
    errors = [want.error for _, want, _ in results if want.error]
    if len(errors) < len(results):
        return Outcome("ok", note, VERSION)
    if all(have.error for have in found):
        reason = f"the CPU cannot: {type(errors[0]).__name__}: {errors[0]}"
        return Outcome("skipped", plain(reason), VERSION)
    return Outcome("ok", "ran; the CPU cannot, so nothing was compared", VERSION)


def _wrong(results: list[tuple[Sample, Result, Result]], has_free_sizes: bool) -> Outcome | None:
    """The first call that failed where the CPU's did not, or gave something else."""
    for sample, want, have in results:
        if have.error is not None and (want.error is None or isinstance(have.error, NeusightError)):
            return outcome_of(have.error, version=VERSION)
        if not sample.is_bound:
            want = replace(want, out=tuple(_on_the_cpu(leaf) for leaf in want.out))
        reason = "" if want.error or have.error else difference(want, have, has_free_sizes)
        if reason:
            given = ", ".join(str(without_strides(leaf)) for leaf in sample.given)
            return Outcome("difference", plain(f"{reason}, of {given}"), VERSION)
    return None


def _is_time(estimate: Any) -> bool:
    return math.isfinite(estimate.latency_us) and estimate.latency_us > 0


def difference(want: Result, have: Result, has_free_sizes: bool = False) -> str:
    """In what two calls differ, in words; empty where in nothing."""
    for what, wanted, found in (
        ("result", want.out, have.out),
        ("gradient", want.gradients, have.gradients),
    ):
        if len(wanted) != len(found):
            return f"{len(found)} {what}s, {len(wanted)} on the CPU"
        for one, other in zip(wanted, found, strict=True):
            if has_free_sizes and _is_of_free_size(one, other):
                continue
            if isinstance(one, Tensor) and not one.strides:
                other = without_strides(other)
            if one != other:
                return f"{what} {other}, on the CPU {one}"
    return ""


def _on_the_cpu(leaf: Leaf) -> Leaf:
    return replace(leaf, is_on_device=False) if isinstance(leaf, Tensor) else leaf


def without_strides(leaf: Leaf) -> Leaf:
    """What is compared of a tensor whose strides nobody promises."""
    return replace(leaf, strides=()) if isinstance(leaf, Tensor) else leaf


def _is_of_free_size(one: Leaf, other: Leaf) -> bool:
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and (one.dtype, one.layout, one.is_on_device, len(one.shape))
        == (other.dtype, other.layout, other.is_on_device, len(other.shape))
    )

"""Measured kernels as groups of rows: what was launched and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel

Floats = NDArray[np.float64]

Bools = NDArray[np.bool_]

#: Launches that one row stands for: an fp8_dynamic row is a quantisation and a product.
Launches = tuple[Kernel, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one GPU, table, dtype and operation: what was launched and how long it took.

    `sustained` says at which clocks. `shape` identifies a row's shape on every GPU: splits are
    made by it. `is_for_training` is false of second opinions. `has_overhead` where the label holds
    the host's share; `parts_us` is the measured share of all launches but the last, NaN where it
    was not measured.
    """

    gpu_label: str
    gpu: GPU
    table: str
    dtype: str
    phase_or_op: str
    launches: Sequence[Launches]
    latency_us: Floats
    shape: NDArray[np.uint64]
    sustained: bool = False
    has_overhead: bool = False
    is_for_training: bool = True
    parts_us: Floats | None = None
    is_model_shape: Bools | None = None

    def chosen(self, mask: Bools) -> Group:
        """The rows where `mask` is true."""
        indices = np.flatnonzero(mask).tolist()
        return replace(
            self,
            launches=[self.launches[index] for index in indices],
            latency_us=self.latency_us[mask],
            shape=self.shape[mask],
            parts_us=None if self.parts_us is None else self.parts_us[mask],
            is_model_shape=None if self.is_model_shape is None else self.is_model_shape[mask],
        )


@dataclass(frozen=True)
class Dataset:
    """All groups of a folder, and what was left out with the reason."""

    folder: Path
    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = field(default=())


def is_held_out(shape: NDArray[np.uint64], *, share: float = 0.1, salt: int = 0) -> Bools:
    """The shapes kept out of training: about that share, the same on every GPU and machine."""
    mixed = (shape ^ np.uint64(salt * 0x9E3779B9)) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    result: Bools = (mixed >> np.uint64(33)) % np.uint64(1000) < np.uint64(round(share * 1000))
    return result

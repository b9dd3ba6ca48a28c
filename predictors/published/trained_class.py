"""What was trained of one class of kernels: its network, its tiles, and how far it is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import WeightsError
from neusight.predictors.gpu import GPU
from neusight.predictors.learned.network import log_of
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.network_files import (
    NetworkFile,
    load_networks,
    save_network_file,
)

Floats = NDArray[np.float64]

#: Shapes looked up at once.
_CHUNK = 64


@dataclass(frozen=True, eq=False)
class TileTable:
    """Which tile each GPU took for which shape: launches that were measured.

    `gpus` names them with their compute capability and number of SMs; `owner` says by index whose
    a row is; `shapes` are rows x 4 (batch, m, n, k) and `tiles` rows x 2.
    """

    gpus: tuple[tuple[str, float, int], ...]
    owner: NDArray[np.int64]
    shapes: NDArray[np.int64]
    tiles: NDArray[np.int64]

    def nearest(self, shapes: Sequence[tuple[int, ...]], gpu: GPU) -> NDArray[np.int64]:
        """The tile of the launch whose shape is nearest, in the squares of logarithms, on the GPU
        itself or on the one in the table that is most like it; rows x 2."""
        rows = np.flatnonzero(self.owner == self._most_like(gpu))
        known = log_of(np.maximum(self.shapes[rows], 1).astype(np.float64))
        requested = log_of(np.maximum(np.array(shapes, dtype=np.float64), 1.0))
        found = np.empty(len(requested), dtype=np.int64)
        for start in range(0, len(requested), _CHUNK):
            part = requested[start : start + _CHUNK]
            distance = np.zeros((len(part), len(known)))
            for column in range(known.shape[1]):
                apart = part[:, column, None] - known[None, :, column]
                distance += apart * apart
            found[start : start + len(part)] = distance.argmin(axis=1)
        return self.tiles[rows[found]]

    def _most_like(self, gpu: GPU) -> int:
        """The GPU of that name, else of the nearest compute capability, then number of SMs."""
        major, minor = gpu.compute_capability

        def distance(index: int) -> tuple[bool, float, int]:
            name, capability, num_sms = self.gpus[index]
            apart = abs(major + minor / 10 - capability)
            return (name != gpu.name, apart, abs(num_sms - gpu.num_sms))

        return min(range(len(self.gpus)), key=distance)


@dataclass(frozen=True, eq=False)
class TrainedClass:
    """The network of one class on one vendor's GPUs; `spread` is the half width of the 80 %
    interval on held-out shapes, `unseen_spread` on GPUs that were left out of training."""

    vendor: str
    name: str
    network: IntegerNetwork
    tiles: TileTable
    spread: float
    unseen_spread: float
    provenance: dict[str, Any]

    def spread_on(self, gpu: GPU) -> float:
        """Half width of the 80 % interval on that GPU, as a share."""
        return self.spread if gpu.name in self.provenance["gpus"] else self.unseen_spread


def save_class(trained: TrainedClass, folder: Path) -> Path:
    """Writes the file of a class; equal ones give equal bytes."""
    tiles = trained.tiles
    arrays: dict[str, NDArray[Any]] = {
        "owner": tiles.owner.astype(np.int8),
        "shapes": tiles.shapes.astype(np.int32),
        "tiles": tiles.tiles.astype(np.int32),
    }
    meta = {
        "vendor": trained.vendor,
        "class": trained.name,
        "tile_gpus": [list(item) for item in tiles.gpus],
        "spread": trained.spread,
        "unseen_spread": trained.unseen_spread,
        "provenance": trained.provenance,
    }
    name = f"{trained.vendor}_{trained.name}"
    gpus = tuple(gpu for gpu, _, _ in tiles.gpus)
    return save_network_file(
        NetworkFile(_PREDICTOR, name, trained.network, gpus, arrays, meta), folder
    )


def load_classes(folder: Path) -> dict[tuple[str, str], TrainedClass]:
    """The classes of a folder that `neusight fit --predictor neusight` wrote, by vendor and class.

    WeightsError where there is none, or a file is damaged or of another predictor.
    """
    found = [_of_file(item, folder) for item in load_networks(folder, _PREDICTOR).values()]
    return {(item.vendor, item.name): item for item in found}


def _of_file(item: NetworkFile, folder: Path) -> TrainedClass:
    meta, arrays = item.meta, item.arrays
    try:
        tiles = _tiles_of(meta, arrays)
        return TrainedClass(
            meta["vendor"],
            meta["class"],
            item.network,
            tiles,
            float(meta["spread"]),
            float(meta["unseen_spread"]),
            meta["provenance"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"The weights {item.name} in {folder} lack what the predictor {_PREDICTOR!r} needs"
            f" ({error}); `neusight fit --predictor {_PREDICTOR}` writes them again."
        ) from error


def _tiles_of(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TileTable:
    owner, shapes, tiles = (arrays[name].astype(np.int64) for name in ("owner", "shapes", "tiles"))
    gpus = tuple((str(name), float(ver), int(sms)) for name, ver, sms in meta["tile_gpus"])
    fits = shapes.shape == (len(owner), 4) and tiles.shape == (len(owner), 2)
    if not fits or (tiles < 1).any() or set(owner.tolist()) != set(range(len(gpus))):
        raise ValueError("its tiles do not fit its shapes or GPUs")
    return TileTable(gpus, owner, shapes, tiles)


#: The predictor that the classes belong to.
_PREDICTOR = "neusight"

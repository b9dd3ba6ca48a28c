"""Files of published networks: .npz without pickles, checked when read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import WeightsError
from neusight.predictors.files import read_bytes, write_atomically
from neusight.predictors.learned.network import npz_of
from neusight.predictors.published.integer_network import IntegerNetwork

#: Version of the layout; a file of another one is refused.
SCHEMA_VERSION = 1

#: Largest file read, bytes: larger ones are refused before they fill the memory.
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class NetworkFile:
    """One network of a published predictor, the GPUs it was trained on, and what goes with it:
    other `arrays`, and plain values in `meta`."""

    predictor: str
    name: str
    network: IntegerNetwork
    gpus: tuple[str, ...]
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]


def save_network_file(item: NetworkFile, folder: Path) -> Path:
    """Writes `<predictor>_<name>.npz`; equal networks give equal bytes."""
    network = item.network
    meta = {
        "schema_version": SCHEMA_VERSION,
        "predictor": item.predictor,
        "name": item.name,
        "gpus": list(item.gpus),
        "num_layers": len(network.layers),
        **item.meta,
    }
    arrays: dict[str, NDArray[Any]] = {
        "meta": np.array(json.dumps(meta, sort_keys=True)),
        "low": network.low,
        "high": network.high,
        "mean": network.mean,
        "spread": network.spread,
        **item.arrays,
    }
    for index, (weights, scale, bias) in enumerate(network.layers):
        arrays |= {f"weight_{index}": weights, f"scale_{index}": scale, f"bias_{index}": bias}
    path = folder / f"{item.predictor}_{item.name}.npz"
    write_atomically(path, npz_of(arrays, zipfile.ZIP_DEFLATED))
    return path


def load_networks(folder: Path, predictor: str) -> dict[str, NetworkFile]:
    """The networks of a predictor in a folder that `neusight fit` wrote, by name.

    WeightsError where there is none, or a file is damaged or of another predictor.
    """
    found = [_loaded(path, predictor) for path in sorted(folder.glob(f"{predictor}_*.npz"))]
    if not found:
        raise WeightsError(
            f"{folder} holds no weights of the predictor {predictor!r}; `neusight fit --predictor"
            f" {predictor} DATA --out {folder}` writes them."
        )
    return {item.name: item for item in found}


def _loaded(path: Path, predictor: str) -> NetworkFile:
    try:
        data = read_bytes(path, most=_MOST_BYTES)
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(str(arrays.pop("meta")))
        if meta["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its version is {meta['schema_version']}, not {SCHEMA_VERSION}")
        if meta["predictor"] != predictor:
            raise ValueError(f"it is of the predictor {meta['predictor']!r}")
        return NetworkFile(
            predictor,
            str(meta["name"]),
            _network(arrays, int(meta["num_layers"])),
            tuple(map(str, meta["gpus"])),
            arrays,
            meta,
        )
    except Exception as error:  # zlib, zipfile, json and numpy raise many kinds for a damaged file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise WeightsError(
            f"Weight file {path} cannot be read ({reason}); `neusight fit --predictor {predictor}`"
            " writes it again, or install neusight again."
        ) from error


def _network(arrays: dict[str, NDArray[Any]], num_layers: int) -> IntegerNetwork:
    """The network of a file's arrays, which are taken out of them; ValueError where they do not
    fit together."""
    ranges = [arrays.pop(name) for name in ("low", "high", "mean", "spread")]
    layers = []
    width = len(ranges[0])
    for index in range(num_layers):
        weights, scale, bias = (
            arrays.pop(f"{part}_{index}") for part in ("weight", "scale", "bias")
        )
        if weights.dtype != np.int8 or weights.shape != (len(bias), width):
            raise ValueError("its layers do not fit together")
        if scale.shape != bias.shape or not np.isfinite([*scale, *bias]).all():
            raise ValueError("its scales do not fit its layers")
        layers.append((weights, scale, bias))
        width = len(bias)
    if not layers or any(item.shape != ranges[0].shape for item in ranges):
        raise ValueError("its ranges do not fit its features")
    if not np.isfinite(ranges).all() or (ranges[3] <= 0).any():
        raise ValueError("a range is not finite")
    low, high, mean, spread = ranges
    return IntegerNetwork(low, high, mean, spread, tuple(layers))

"""Small networks that correct the physics: bit-equal on every machine, kept in .npz files.

Only additions, products, quotients and square roots of float64, in a stated order: no matrix
library, whose sums differ between processors, and no exp or log of one. The activation is an
algebraic relative of GELU, x/2 (1 + x/√(1+x²)), for the same reason.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import WeightsError
from neusight.predictors.files import Fields, json_value, read_bytes, shown, write_atomically

Floats = NDArray[np.float64]

#: Version of the .npz layout; a file of another one is refused.
SCHEMA_VERSION = 2

#: Rows run at once: their activations stay in the processor's cache.
_CHUNK = 512

#: Terms of the series: the next is below 1e-16 of the result.
_LOG_TERMS = 11
_EXP_TERMS = 14
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476

#: Largest file read, bytes: larger ones are refused before they fill the memory.
_MOST_BYTES = 8 * 2**20

#: Layers of a network, the largest of its figures and the largest logarithm of its factor, far
#: above any that we fit: with them nothing overflows.
_MOST_LAYERS = 8
_MOST_FIGURE = 1e9
_MOST_BOUND = 100.0


def log_of(values: Floats) -> Floats:
    """Natural logarithm of positive numbers, within 1e-15, the same bits on every machine.

    >>> bool(abs(log_of(np.array([10.0]))[0] - 2.302585092994046) < 1e-15)
    True
    """
    mantissa, exponent = np.frexp(values)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    power = exponent - small
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(ratio, 1.0 / (2 * _LOG_TERMS - 1))
    for term in range(_LOG_TERMS - 2, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    result: Floats = power * _LN2 + 2.0 * ratio * series
    return result


def exp_of(values: Floats) -> Floats:
    """e to the power of each, |value| < 700, the same bits on every machine."""
    power = np.rint(values / _LN2)
    rest = values - power * _LN2
    series = np.ones_like(rest)
    for term in range(_EXP_TERMS, 0, -1):
        series = series * rest / term + 1.0
    result: Floats = np.ldexp(series, power.astype(np.int64))
    return result


@dataclass(frozen=True, eq=False)
class Network:
    """One trained correction: log(measured / physics) from dimensionless features.

    `low` and `high` are the range of each feature in training: inputs are clipped to it. The
    output stays within `bound`. `spreads` holds half widths of the 80 % interval as shares, by size
    class (columns) and GPU (rows): one for each of `gpus`, or, where a network has none because it
    is for unseen GPUs, the four of `knowledge_of`. `architectures` are those of the training.
    `provenance` says what it was fitted on.
    """

    features: tuple[str, ...]
    low: Floats
    high: Floats
    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]
    bound: float
    spreads: Floats
    gpus: tuple[str, ...]
    architectures: tuple[str, ...]
    provenance: dict[str, Any]

    def run(self, features: Floats) -> Floats:
        """The logarithm of the factor of each row of `features`."""
        result = np.empty(len(features))
        for start in range(0, len(features), _CHUNK):
            chunk = features[start : start + _CHUNK]
            clipped = np.minimum(np.maximum(chunk, self.low), self.high)
            result[start : start + _CHUNK] = self._forward((clipped - self.mean) / self.scale)
        return result

    def num_outside(self, features: Floats) -> NDArray[np.int64]:
        """How many features of each row lie outside the range of training."""
        outside = (features < self.low) | (features > self.high)
        result: NDArray[np.int64] = outside.sum(axis=1)
        return result

    def _forward(self, inputs: Floats) -> Floats:
        values = np.ascontiguousarray(inputs.T)
        for index, (weight, bias) in enumerate(self.layers):
            sums = np.repeat(bias[:, None], values.shape[1], axis=1)
            product = np.empty_like(sums)
            # One input after the other: the order of the sum is part of the result.
            for column, row in zip(weight.T, values, strict=True):
                np.multiply(column[:, None], row[None, :], out=product)
                np.add(sums, product, out=sums)
            values = sums
            if index + 1 < len(self.layers):
                values = (0.5 * sums) * (1.0 + sums / np.sqrt(1.0 + sums * sums))
        last = values[0]
        result: Floats = self.bound * (last / np.sqrt(1.0 + last * last))
        return result


def save_network(network: Network, path: Path) -> None:
    """Writes the network as .npz without pickles; equal networks give equal bytes."""
    arrays: dict[str, Any] = {
        "meta": np.array(
            json.dumps(
                {
                    "schema_version": SCHEMA_VERSION,
                    "features": list(network.features),
                    "gpus": list(network.gpus),
                    "architectures": list(network.architectures),
                    "bound": network.bound,
                    "num_layers": len(network.layers),
                    "provenance": network.provenance,
                },
                sort_keys=True,
            )
        ),
    }
    arrays |= {name: getattr(network, name) for name in _ARRAYS}
    for index, (weight, bias) in enumerate(network.layers):
        arrays |= {f"weight_{index}": weight, f"bias_{index}": bias}
    write_atomically(path, npz_of(arrays, zipfile.ZIP_STORED))


def npz_of(arrays: Mapping[str, NDArray[Any]], compression: int) -> bytes:
    """The arrays as an .npz file; equal ones give equal bytes: numpy.savez stamps each with the
    time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = compression
            with archive.open(entry, "w") as member:
                np.lib.format.write_array(member, np.asarray(arrays[name]), allow_pickle=False)
    return packed.getvalue()


_ARRAYS = ("low", "high", "mean", "scale", "spreads")


def load_network(path: Path) -> Network:
    """The network that `save_network` wrote; WeightsError where the file is anything else."""
    try:
        arrays = _arrays_of(read_bytes(path, most=_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(getattr(error, "strerror", None) or error)) from error
    return _checked(path, arrays)


def _arrays_of(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; ValueError where that is damaged, or would fill the memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > _MOST_BYTES:
                raise ValueError(f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
            if len({member.filename for member in members}) < len(members):
                raise ValueError("an array is there twice")
            return {
                member.filename.removesuffix(".npy"): _array_of(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    except Exception as error:  # zlib.error and what else a damaged member raises
        raise ValueError(shown(str(error) or type(error).__name__)) from error


def _array_of(data: bytes) -> NDArray[Any]:
    """An array in numpy's format, whose header is no larger than what follows: a damaged one may
    ask for all of the memory."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(stream)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > len(data):
        raise ValueError("an array holds objects, or less than it says")
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _damaged(path: Path, reason: str) -> WeightsError:
    return WeightsError(
        f"Weight file {path} cannot be read ({reason}); `neusight fit` writes it again,"
        " or install neusight again."
    )


def _checked(path: Path, arrays: dict[str, NDArray[Any]]) -> Network:
    meta = _meta_of(path, arrays)
    num_layers = meta.count("num_layers")
    names = [f"{part}_{index}" for index in range(num_layers) for part in ("weight", "bias")]
    for name in (*_ARRAYS, *names):
        if name not in arrays:
            raise _damaged(path, f"{name} is missing")
    layers = tuple(
        (arrays[f"weight_{index}"], arrays[f"bias_{index}"]) for index in range(num_layers)
    )
    network = Network(
        features=meta.texts("features"),
        layers=layers,
        bound=meta.number("bound", least=0.0, most=_MOST_BOUND),
        gpus=meta.texts("gpus"),
        architectures=meta.texts("architectures"),
        provenance=meta.mapping("provenance"),
        **{name: arrays[name] for name in _ARRAYS},
    )
    _require_shapes(path, network)
    return network


def _meta_of(path: Path, arrays: dict[str, NDArray[Any]]) -> Fields:
    try:
        values = json_value(str(arrays["meta"]))
    except (KeyError, ValueError) as error:
        raise _damaged(path, "no neusight weights") from error
    if not isinstance(values, dict) or "schema_version" not in values:
        raise _damaged(path, "no neusight weights")
    meta = Fields(
        values,
        "weight file",
        str(path),
        error=WeightsError,
        remedy="Fit the weights with this version (`neusight fit`), or install neusight again.",
    )
    meta.require_version("schema_version", SCHEMA_VERSION)
    if meta.count("num_layers") > _MOST_LAYERS:
        meta.refuse("num_layers", f"at most {_MOST_LAYERS}")
    return meta


#: Rows of `Network.spreads` where the network is for unseen GPUs, and its columns.
UNSEEN_ROWS = 4
SIZE_CLASSES = 4


def _require_shapes(path: Path, network: Network) -> None:
    width = len(network.features)
    if any(bias.ndim != 1 or weight.ndim != 2 for weight, bias in network.layers):
        raise _damaged(path, "its layers do not fit together")
    every = [network.low, network.high, network.mean, network.scale, network.spreads]
    for array in (*every, *(part for layer in network.layers for part in layer)):
        # Not a number is not below anything.
        if array.dtype != np.float64 or not (np.abs(array) <= _MOST_FIGURE).all():
            raise _damaged(path, "a figure is not a float64 of a size that we fit")
    if (
        any(array.shape != (width,) for array in every[:4])
        or (network.scale < 1 / _MOST_FIGURE).any()
    ):
        raise _damaged(path, "its feature ranges do not fit its features")
    rows = (len(network.gpus) or UNSEEN_ROWS, SIZE_CLASSES)
    if network.spreads.shape != rows or (network.spreads <= 0).any() or not network.layers:
        raise _damaged(path, "its intervals or layers are wrong")
    for weight, bias in network.layers:
        if weight.shape != (len(bias), width):
            raise _damaged(path, "its layers do not fit together")
        width = len(bias)
    if width != 1:
        raise _damaged(path, "its last layer must give one figure")

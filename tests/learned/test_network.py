"""The networks: exact arithmetic, clipping, and files that are refused when they are wrong."""

from __future__ import annotations

import importlib
import io
import math
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_network import SMALL_NETWORK

from neusight.predictors.errors import NeusightError, WeightsError
from neusight.predictors.learned.network import exp_of, load_network, log_of, save_network


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_right_to_the_last_digits(value: float) -> None:
    assert log_of(np.array([value]))[0] == pytest.approx(math.log(value), rel=1e-14, abs=1e-15)


@given(st.floats(-600, 600))
def test_the_exponential_is_right_to_the_last_digits(value: float) -> None:
    assert exp_of(np.array([value]))[0] == pytest.approx(math.exp(value), rel=1e-12)


def test_a_row_does_not_depend_on_its_batch() -> None:
    features = np.random.default_rng(1).normal(size=(1500, 3))

    together = SMALL_NETWORK.run(features)

    alone = [SMALL_NETWORK.run(features[index : index + 1])[0] for index in range(0, 1500, 97)]
    assert together[::97].tolist() == alone


def test_the_output_is_bounded_and_inputs_are_clipped() -> None:
    network = SMALL_NETWORK
    far = np.array([[1e6, -1e6, 1e6]])

    assert abs(network.run(far)[0]) <= network.bound
    assert network.run(far)[0] == network.run(np.array([[1.0, -1.0, 1.0]]))[0]
    assert network.num_outside(far).tolist() == [3]


def test_a_saved_network_reads_back_and_equal_ones_give_equal_bytes(tmp_path: Path) -> None:
    network = SMALL_NETWORK

    save_network(network, tmp_path / "one.npz")
    save_network(load_network(tmp_path / "one.npz"), tmp_path / "two.npz")

    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    features = np.random.default_rng(2).normal(size=(5, 3))
    assert load_network(tmp_path / "two.npz").run(features).tolist() == (
        network.run(features).tolist()
    )


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "flipped", "missing", "pickle"])
def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "gemm.npz"
    save_network(SMALL_NETWORK, path)
    content = bytearray(path.read_bytes())
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("no weights")
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[60] ^= 0xFF
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
    else:
        np.savez(path, meta=np.array([{"a": 1}], dtype=object))

    with pytest.raises(WeightsError, match=r"gemm\.npz") as caught:
        load_network(path)

    assert isinstance(caught.value, NeusightError)


def test_a_file_that_unpacks_to_more_than_8_mib_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "gemm.npz"
    np.savez_compressed(path, low=np.zeros(2**20 + 1))

    with pytest.raises(WeightsError, match=r"gemm\.npz.*unpacks to more than 8 MiB"):
        load_network(path)


SQUARE = (np.ones((3, 3)), np.ones(3))
LAST = (np.ones((1, 3)), np.ones(1))
RANGES, LAYERS = "its feature ranges do not fit its features", "its layers do not fit together"
INTERVALS, FIGURE = "its intervals or layers are wrong", "a figure is not a float64 of a size"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"low": np.zeros(2)}, RANGES),
        ({"high": np.zeros(4)}, RANGES),
        ({"mean": np.zeros((3, 1))}, RANGES),
        ({"scale": np.array([1.0, 0.9e-9, 1.0])}, RANGES),
        ({"mean": np.array([0.0, np.nan, 0.0])}, FIGURE),
        ({"mean": np.array([0.0, -1.1e9, 0.0])}, FIGURE),
        ({"high": np.ones(3, np.float32)}, FIGURE),
        ({"layers": ((np.ones((1, 3)), np.array([1.1e9])),)}, FIGURE),
        ({"layers": ((np.ones((1, 2)), np.ones(1)),)}, LAYERS),
        ({"layers": ((np.ones((2, 3)), np.ones(1)),)}, LAYERS),
        ({"layers": ((np.ones((1, 3)), np.ones((1, 1))),)}, LAYERS),
        ({"layers": ((np.ones(3), np.ones(1)),)}, LAYERS),
        ({"layers": (LAST, LAST)}, LAYERS),
        ({"layers": ()}, INTERVALS),
        ({"spreads": np.array([[0.1, 0.1, 0.0, 0.1]])}, INTERVALS),
        ({"spreads": np.ones((2, 4))}, INTERVALS),
        ({"spreads": np.ones((1, 5))}, INTERVALS),
        ({"gpus": (), "spreads": np.ones((1, 4))}, INTERVALS),
        ({"layers": (SQUARE,)}, "its last layer must give one figure"),
        ({"layers": (SQUARE,) * 8 + (LAST,)}, "at most 8"),
        ({"bound": 101.0}, "bound"),
        ({"bound": -0.1}, "bound"),
    ],
)
def test_figures_that_do_not_fit_together_are_refused(
    changed: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "gemm.npz"
    save_network(replace(SMALL_NETWORK, **changed), path)

    with pytest.raises(WeightsError, match=rf"gemm\.npz.*{reason}"):
        load_network(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": np.array([1.0, 1e-9, 1e9])},
        {"mean": np.array([0.0, 1e9, -1e9])},
        {"layers": (SQUARE,) * 7 + (LAST,)},
        {"gpus": (), "spreads": np.ones((4, 4))},
        {"gpus": ("G", "H"), "spreads": np.full((2, 4), 1e-9)},
        {"bound": 100.0},
        {"bound": 0.0},
    ],
)
def test_figures_at_the_bounds_are_read(changed: dict[str, Any], tmp_path: Path) -> None:
    network = replace(SMALL_NETWORK, **changed)
    save_network(network, tmp_path / "gemm.npz")

    found = load_network(tmp_path / "gemm.npz")

    assert (found.bound, found.gpus, len(found.layers)) == (
        network.bound,
        network.gpus,
        len(network.layers),
    )
    for name in ("low", "high", "mean", "scale", "spreads"):
        assert np.array_equal(getattr(found, name), getattr(network, name))


@pytest.mark.parametrize(("excess", "is_read"), [(0, True), (1, False)])
def test_a_weight_file_has_8_mib_at_most(excess: int, is_read: bool, tmp_path: Path) -> None:
    path = tmp_path / "gemm.npz"
    path.write_bytes(bytes(8 * 2**20 + excess))

    reason = "not a zip file" if is_read else "it holds more than 8 MiB"
    with pytest.raises(WeightsError, match=reason):
        load_network(path)


@pytest.mark.parametrize(
    ("values", "outside"), [((1.0, -1.0, 0.0), 0), ((1.1, 0.0, 0.0), 1), ((0.0, -1.1, 2.0), 2)]
)
def test_features_beyond_the_range_are_counted(values: tuple[float, ...], outside: int) -> None:
    assert SMALL_NETWORK.num_outside(np.array([values])).tolist() == [outside]


@pytest.mark.parametrize(
    ("meta", "reported"),
    [('{"schema_version": 99}', "schema version 99"), ("[]", "no neusight weights")],
)
def test_another_schema_version_or_document_is_named(
    meta: str, reported: str, tmp_path: Path
) -> None:
    save_network(SMALL_NETWORK, tmp_path / "old.npz")
    with np.load(tmp_path / "old.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(tmp_path / "new.npz", allow_pickle=False, **arrays | {"meta": np.array(meta)})

    with pytest.raises(WeightsError, match=reported):
        load_network(tmp_path / "new.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    save_network(SMALL_NETWORK, tmp_path / "w.npz")
    with zipfile.ZipFile(tmp_path / "w.npz", "a") as archive:
        archive.writestr("low.npy", archive.read("low.npy"))

    with pytest.raises(WeightsError, match="an array is there twice"):
        load_network(tmp_path / "w.npz")


PRICES = """
import hashlib, random
from neusight.predictors import Kernel, predict
generator = random.Random(0)
kernels = [Kernel.gemm(generator.randrange(1, 9000), 64 * generator.randrange(1, 99),
           64 * generator.randrange(1, 99)) for _ in range(400)]
kernels += [Kernel.attention(2, 16, 4, 128 * n, 128 * n, 128, causal=True, dtype="bfloat16",
            name="flash_attention_3") for n in range(1, 20)]
kernels += [Kernel.collective("all_reduce", 10**n, 8) for n in range(3, 9)]
found = [(e.latency_us, e.low_us, e.high_us) for e in predict(kernels, "H100")]
print(hashlib.sha256(repr(found).encode()).hexdigest())
"""


def test_prices_are_bit_equal_on_every_processor() -> None:
    """Rule: no dependence on the matrix library's core type, on SIMD features or on threads."""
    settings = [
        {},
        {"OPENBLAS_CORETYPE": "Nehalem", "OMP_NUM_THREADS": "1"},
        {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2"},
        {"NPY_DISABLE_CPU_FEATURES": _features_to_disable()},
    ]

    shown = {
        subprocess.run(
            [sys.executable, "-c", PRICES],
            env={**os.environ, **chosen},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for chosen in settings
    }

    assert len(shown) == 1


def _features_to_disable() -> str:
    """Every optional processor feature that numpy uses here."""
    core = importlib.import_module("numpy._core._multiarray_umath")  # no public name lists them
    dispatched = getattr(core, "__cpu_dispatch__", [])
    usable = getattr(core, "__cpu_features__", {})
    return " ".join(name for name in dispatched if usable.get(name))


def test_an_array_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", bytes(2**26))

    with pytest.raises(WeightsError, match=r"w\.npz cannot be read \(it unpacks to more"):
        load_network(path)


def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", stream.getvalue())

    with pytest.raises(WeightsError, match="an array holds objects, or less than it says"):
        load_network(path)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, meta=np.array([print], dtype=object), allow_pickle=True)

    with pytest.raises(WeightsError, match="an array holds objects"):
        load_network(path)

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


def test_figures_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    wrong = {
        "ranges": replace(SMALL_NETWORK, low=np.zeros(2)),
        "not finite": replace(SMALL_NETWORK, mean=np.array([0.0, np.nan, 0.0])),
        "layers": replace(SMALL_NETWORK, layers=((np.ones((1, 2)), np.ones(1)),)),
        "intervals": replace(SMALL_NETWORK, spreads=np.zeros((1, 4))),
        "rows": replace(SMALL_NETWORK, spreads=np.ones((2, 4))),
        "outputs": replace(SMALL_NETWORK, layers=((np.ones((2, 3)), np.ones(2)),)),
        "many layers": replace(SMALL_NETWORK, layers=SMALL_NETWORK.layers * 9),
        "bound": replace(SMALL_NETWORK, bound=101.0),
    }
    for name, network in wrong.items():
        save_network(network, tmp_path / f"{name}.npz")
        with pytest.raises(WeightsError, match=f"{name}.npz"):
            load_network(tmp_path / f"{name}.npz")


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

"""Files of networks: equal bytes for equal networks, one clear line for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neusight.predictors.errors import WeightsError
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.network_files import (
    NetworkFile,
    load_networks,
    save_network_file,
)


def item(predictor: str = "neusight") -> NetworkFile:
    network = IntegerNetwork(
        np.zeros(2), np.ones(2), np.zeros(2), np.ones(2),
        ((np.array([[1, -2]], dtype=np.int8), np.ones(1), np.zeros(1)),),
    )  # fmt: skip
    return NetworkFile(predictor, "bmm", network, ("T4",), {"extra": np.arange(3)}, {"spread": 0.5})


def test_equal_networks_give_equal_bytes_and_come_back(tmp_path: Path) -> None:
    path = save_network_file(item(), tmp_path)
    first = path.read_bytes()
    assert save_network_file(item(), tmp_path).read_bytes() == first
    found = load_networks(tmp_path, "neusight")["bmm"]
    assert found.gpus == ("T4",)
    assert found.arrays["extra"].tolist() == [0, 1, 2]
    assert found.meta["spread"] == 0.5


def test_weights_of_another_predictor_are_named(tmp_path: Path) -> None:
    save_network_file(item("habitat"), tmp_path).rename(tmp_path / "neusight_bmm.npz")
    with pytest.raises(WeightsError) as caught:
        load_networks(tmp_path, "neusight")
    message = str(caught.value)
    assert "it is of the predictor 'habitat'" in message
    assert "neusight fit --predictor neusight" in message
    assert "\n" not in message


def test_an_empty_folder_says_how_weights_are_made(tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError, match="holds no weights of the predictor 'neusight'; `neusight"
    ):
        load_networks(tmp_path, "neusight")


@pytest.mark.parametrize("data", [b"", b"nonsense", b"PK\x03\x04", b"\x00" * 400])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "neusight_bmm.npz").write_bytes(data)
    with pytest.raises(WeightsError, match=r"neusight_bmm\.npz cannot be read") as caught:
        load_networks(tmp_path, "neusight")
    assert "\n" not in str(caught.value)


def test_a_file_cut_short_or_changed_is_refused_or_read_whole(tmp_path: Path) -> None:
    path = save_network_file(item(), tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError):
            load_networks(tmp_path, "neusight")


@pytest.mark.parametrize(
    ("name", "value", "stated"),
    [
        ("weight_0", np.zeros((1, 3), dtype=np.int8), "layers do not fit"),
        ("weight_0", np.zeros((1, 2)), "layers do not fit"),
        ("scale_0", np.array([np.nan]), "scales do not fit"),
        ("spread", np.zeros(2), "a range is not finite"),
        ("low", np.zeros(3), "layers do not fit"),
        ("high", np.zeros(3), "ranges do not fit"),
        ("meta", np.array('{"schema_version": 9}'), "its version is 9, not 1"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, name: str, value: NDArray[Any], stated: str
) -> None:
    path = save_network_file(item(), tmp_path)
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays[name] = value
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(WeightsError, match=stated):
        load_networks(tmp_path, "neusight")

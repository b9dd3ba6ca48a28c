"""The known GPU that is nearest to an unknown one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.profiles.calibration import calibrate
from neusight.integrations.profiles.reading.devices import nearest_gpu, nearest_gpu_by_name
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.predictors.errors import CalibrationError
from profile_events import device_event

#: What torch.profiler writes of the cards of a DGX Station.
DGX_STATION = {
    "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34084028416, "computeMajor": 7,
    "computeMinor": 0, "numSms": 80, "warpSize": 32,
}  # fmt: skip


def written(folder: Path, properties: dict[str, Any]) -> Path:
    kernel = device_event("volta_sgemm_128x64_nn", 1.0, 90.0, 1)
    path = folder / "profile.json"
    path.write_text(json.dumps({"deviceProperties": [properties], "traceEvents": [kernel]}))
    return path


def profile(folder: Path, **changes: Any) -> Profile:
    return read_profile(written(folder, {**DGX_STATION, **changes}), keep_arguments=True)


def test_the_figures_state_and_the_name_among_equals(tmp_path: Path) -> None:
    found = nearest_gpu(profile(tmp_path))

    assert found is not None
    assert found.gpu.name == "V100-SXM2-32GB"
    assert found.likeness == "80 SMs as well, compute capability 7.0, 32 GiB"


def test_without_figures_the_model_in_the_name_decides(tmp_path: Path) -> None:
    found = nearest_gpu(profile(tmp_path, numSms=81))

    assert found is not None
    assert (found.gpu.name, found.likeness) == ("V100-SXM2-32GB", "the same model by its name")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-PCIE-40GB MIG 3g.20gb", "A100-PCIE-40GB"),
        ("NVIDIA H100 80GB HBM3e", "H100-SXM5-80GB"),
        ("Quadro K620", None),
        ("", None),
    ],
)
def test_the_name_alone_states_the_model(name: str, expected: str | None) -> None:
    found = nearest_gpu_by_name(name)

    assert (None if found is None else found.name) == expected


def test_calibrate_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError) as error:
        calibrate(written(tmp_path, DGX_STATION))

    assert "Tesla V100-DGXS-32GB, which neusight does not know" in str(error.value)
    assert "The nearest is V100-SXM2-32GB (80 SMs as well" in str(error.value)
    assert "say --gpu V100-SXM2-32GB" in str(error.value)


@pytest.mark.parametrize(("share", "is_alike"), [(1.02, True), (0.98, True), (0.96, False)])
def test_a_card_is_like_another_whose_memory_differs_by_less_than_three_hundredths(
    tmp_path: Path, share: float, is_alike: bool
) -> None:
    found = nearest_gpu(profile(tmp_path, totalGlobalMem=round(share * 32 * 2**30)))

    assert found is not None
    assert ("80 SMs" in found.likeness) is is_alike

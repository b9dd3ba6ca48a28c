"""Which folders are caches, and which hold the user's files."""

from __future__ import annotations

from pathlib import Path

import pytest

import neusight
from neusight.fake_cuda.overlay.package_caches import cache_folders


def test_caches_are_where_their_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", "weights")

    assert str(tmp_path / "weights") in cache_folders()


@pytest.mark.parametrize("place", [".", ".."])
def test_a_folder_that_holds_the_working_directory_is_no_cache(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", place)

    with neusight.forecast_on("H100"):
        import torch

        torch.save(torch.ones(3, device="cuda"), "result.pt")
        assert Path("result.pt").exists()

    assert not Path("result.pt").exists()

"""Whatever does not run says so, with the nearest that does and the command that gets it."""

from __future__ import annotations

import platform
import runpy
import sys

import pytest

from neusight.compatibility import releases
from neusight.compatibility.releases import (
    CONTAINER_BUILD,
    CONTAINER_RUN,
    TESTED_TORCH,
    nearest_torch,
    python_problem,
    refuse_platform,
    refuse_torch,
    remedy_for_torch,
)
from neusight.predictors.errors import UnsupportedTorchError
from places import ROOT


@pytest.fixture
def newest_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))


@pytest.mark.parametrize(
    ("system", "machine"),
    [("Darwin", "arm64"), ("Darwin", "x86_64"), ("Linux", "aarch64"), ("Windows", "AMD64")],
)
def test_another_platform_is_refused_with_the_command_that_works_there(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    with pytest.raises(UnsupportedTorchError) as caught:
        refuse_platform()

    assert f"cannot forecast on {system} {machine}" in str(caught.value)
    assert CONTAINER_BUILD in str(caught.value)
    assert str(caught.value).endswith(CONTAINER_RUN)


def test_linux_on_x86_64_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    refuse_platform()


@pytest.mark.parametrize("version", ["1.13.1", "2.6.0+cu124", "2.10.0"])
def test_a_torch_that_is_too_old_gets_the_oldest_that_works(
    version: str, newest_python: None
) -> None:
    with pytest.raises(UnsupportedTorchError) as caught:
        refuse_torch(version, is_rocm=False)

    assert str(caught.value) == (
        f"torch {version} is older than what neusight can patch. The nearest release that works "
        "is 2.11.0. pip install 'torch===2.11.0'"
    )


@pytest.mark.parametrize("version", [*TESTED_TORCH, "2.16.0.dev20261101+cu132", "from-source"])
def test_a_torch_that_may_work_is_tried(version: str) -> None:
    refuse_torch(version, is_rocm=False)


def test_a_rocm_build_is_replaced_although_its_release_is_a_tested_one(newest_python: None) -> None:
    with pytest.raises(UnsupportedTorchError, match="ROCm build") as caught:
        refuse_torch("2.13.0+rocm6.4", is_rocm=True)

    assert str(caught.value).endswith("pip install 'torch===2.13.0'")


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("2.3.1", "2.11.0"),
        ("2.12.0a0+git1234", "2.12.1"),
        ("2.17.0.dev20261101+cu132", max(TESTED_TORCH)),
        ("3.0.0", max(TESTED_TORCH)),
    ],
)
def test_the_nearest_release_is_counted_in_minor_versions(
    version: str, nearest: str, newest_python: None
) -> None:
    assert nearest_torch(version) == nearest


def test_a_release_without_wheels_for_this_python_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))

    found = nearest_torch("9.0.0")

    assert TESTED_TORCH[found] <= (3, 10)
    assert found != max(TESTED_TORCH)


def test_a_tested_release_that_fails_is_installed_again(newest_python: None) -> None:
    assert remedy_for_torch("2.13.0+cu130") == (
        "torch 2.13.0 works elsewhere, so this installation may be damaged. "
        "pip install --force-reinstall --no-deps torch==2.13.0"
    )


@pytest.mark.parametrize(("here", "nearest"), [((3, 14, 0), "3.13"), ((3, 9, 18), "3.10")])
def test_another_python_is_refused_with_the_nearest_that_works(
    monkeypatch: pytest.MonkeyPatch, here: tuple[int, int, int], nearest: str
) -> None:
    monkeypatch.setattr(sys, "version_info", here)

    assert f"was not tried; the nearest that works is {nearest}" in python_problem()
    assert f"python{nearest} -m venv" in remedy_for_torch("2.13.0")


def test_a_python_that_was_tried_is_no_problem(newest_python: None) -> None:
    assert python_problem() == ""
    assert releases._PYTHONS[0] == (3, 10)


def test_what_a_release_is_tried_with_exists() -> None:
    tried = runpy.run_path(str(ROOT / "benchmarks" / "platforms.py"))

    scripts = [f"examples/{word}" for words in tried["PROGRAMS"].values() for word in words]
    wanted = [*tried["TESTS"], *(path for path in scripts if path.endswith(".py"))]
    assert [path for path in wanted if not (ROOT / path).exists()] == []

"""Predictors by name: registered by hand, brought by packages, or not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from neusight.integrations.cli.main import main
from neusight.predictors import GPU, Estimate, Kernel, Tiled, predict
from neusight.predictors.errors import (
    NeusightError,
    OptionError,
    RegistrationError,
    UnknownPredictorError,
)
from neusight.predictors.predictor import Predictor
from neusight.predictors.registry import (
    _factories,
    find_predictor,
    predictor_at,
    predictor_names,
    register_predictor,
    require_predictor,
)

#: A predictor that prices every kernel alike, as a package of somebody else has it.
SEVEN = """
from neusight.predictors import Estimate

class Seven:
    name = "seven"

    def predict(self, kernels, gpu):
        return [Estimate(7.0, 6.0, 8.0, "memory", "physics", self.name) for _ in kernels]
"""


class Packages:
    """Installs packages into a folder that Python looks into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.modules: list[str] = []

    def install(self, package: str, *, predictor: str, value: str, code: str = SEVEN) -> None:
        """What `pip install` leaves behind of a package with one module and one entry point."""
        module = value.partition(":")[0]
        self.modules.append(module)
        (self._folder / f"{module}.py").write_text(code)
        metadata = self._folder / f"{package.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[neusight.predictors]\n{predictor} = {value}\n"
        )


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    found = Packages(folder)
    yield found
    for module in found.modules:
        sys.modules.pop(module, None)


def test_predictors_are_registered_by_name() -> None:
    class Mine:
        name = "mine"

        def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
            return []

    register_predictor("mine", Mine)
    try:
        assert isinstance(find_predictor("mine"), Predictor)
        assert "mine" in predictor_names()
        assert predict([], "H100", "mine") == []
        with pytest.raises(RegistrationError, match="already registered"):
            register_predictor("mine", Mine)
    finally:
        del _factories["mine"]


@pytest.mark.parametrize("name", ["tiled", "tiled_burst", "roofline"])
def test_our_own_predictors_are_found_and_keep_their_names(name: str) -> None:
    assert find_predictor(name).name == name
    assert name in predictor_names()
    with pytest.raises(RegistrationError, match="already registered"):
        register_predictor(name, lambda: Tiled())


def test_without_a_name_the_default_predictor_is_found() -> None:
    assert find_predictor().name == "tiled"


def test_a_predictor_is_given_back_as_it_is() -> None:
    mine = Tiled(correction=None)

    assert find_predictor(mine) is mine


def test_wrong_registrations_say_so() -> None:
    with pytest.raises(RegistrationError, match="non-empty"):
        register_predictor("", Tiled)
    with pytest.raises(RegistrationError, match="no factory"):
        register_predictor("x", 3)  # type: ignore[arg-type]  # refusing it is the test


def test_an_unknown_name_says_what_is_near_and_known() -> None:
    with pytest.raises(UnknownPredictorError) as caught:
        find_predictor("tile")

    assert str(caught.value) == (
        "Unknown predictor 'tile'. Did you mean 'tiled'? Known: habitat, linear, neusight,"
        " roofline, tiled, tiled_burst; `register_predictor` or an entry point of the group"
        " 'neusight.predictors' adds one."
    )
    assert isinstance(caught.value, (NeusightError, ValueError))


def test_a_factory_that_makes_no_predictor_says_what_it_lacks() -> None:
    register_predictor("hollow", object)  # type: ignore[arg-type]  # refusing it is the test
    try:
        with pytest.raises(RegistrationError, match=r"gave object, which lacks `name`"):
            find_predictor("hollow")
    finally:
        del _factories["hollow"]


def test_a_predictor_that_a_package_brings_is_found(packages: Packages) -> None:
    packages.install("acme-pricing", predictor="seven", value="acme_pricing:Seven")

    [estimate] = predict([Kernel.gemm(64, 64, 64)], "H100", "seven")

    assert (estimate.latency_us, estimate.predictor) == (7.0, "seven")
    assert "seven" in predictor_names()
    require_predictor("seven")


def test_a_package_does_not_replace_what_is_registered(packages: Packages) -> None:
    packages.install("acme-tiles", predictor="tiled", value="acme_tiles:Seven")

    assert isinstance(find_predictor("tiled"), Tiled)


@pytest.mark.parametrize(
    ("code", "stated"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("Seven = 3", "TypeError: 'int' object is not callable"),
        ("def Seven(): raise OSError('no weights')", "OSError: no weights"),
    ],
)
def test_a_broken_entry_point_names_its_package(packages: Packages, code: str, stated: str) -> None:
    packages.install("acme-broken", predictor="broken", value="acme_broken:Seven", code=code)

    with pytest.raises(RegistrationError) as caught:
        find_predictor("broken")

    assert str(caught.value) == (
        "Predictor 'broken' of the package acme-broken 1.2 (acme_broken:Seven) does not work:"
        f" {stated}. Repair, update or uninstall that package, or name another predictor:"
        " tiled, tiled_burst, roofline, linear, habitat, neusight."
    )


def test_two_packages_with_one_name_are_both_named(packages: Packages) -> None:
    packages.install("acme-one", predictor="twice", value="acme_one:Seven")
    packages.install("acme-two", predictor="twice", value="acme_two:Seven")

    with pytest.raises(RegistrationError, match=r"acme-one 1\.2 .* and by .*acme-two 1\.2"):
        find_predictor("twice")


def test_the_command_line_prices_with_the_predictor_of_a_package(
    packages: Packages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.install("acme-forecast", predictor="seven", value="acme_forecast:Seven")
    script = tmp_path / "relu.py"
    script.write_text("import torch\ntorch.ones(4096, device='cuda').relu()\n")
    figures = tmp_path / "figures.json"

    code = main(
        [
            *("run", "--gpu", "H100", "--predictor", "seven"),
            *("--json", str(figures), "--allow-writes", str(script)),
        ]
    )

    assert code == 0, capsys.readouterr().err
    assert '"predictor": "seven"' in figures.read_text()


def test_the_command_line_says_which_package_is_broken(
    packages: Packages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.install("acme-cli", predictor="broken", value="acme_cli:Seven", code="Seven = 3")
    script = tmp_path / "relu.py"
    script.write_text("import torch\n")

    code = main(["run", "--gpu", "H100", "--predictor", "broken", str(script)])

    assert code == 2
    error = capsys.readouterr().err
    assert "the package acme-cli 1.2 (acme_cli:Seven) does not work" in error
    assert "Traceback" not in error


def test_importing_predictors_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, neusight.predictors as p; p.find_gpu('H100');"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"


def test_a_clock_is_the_default_predictor_at_it_and_nothing_to_others() -> None:
    assert [predictor_at(clock) for clock in ("burst", "sustained", None)] == [
        "tiled_burst",
        "tiled",
        None,
    ]
    assert predictor_at("burst", "tiled") == "tiled_burst"
    with pytest.raises(OptionError, match="--clock burst means nothing to predictor 'roofline'"):
        predictor_at("burst", "roofline")

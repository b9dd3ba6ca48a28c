"""What setup.cfg says is packaged is what the folders hold."""

from __future__ import annotations

import ast
import configparser
import contextlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import neusight
from neusight._version import __version__
from neusight.stubs.catalogue import CATALOGUE
from places import ROOT

#: The import name of each folder.
HOMES = {
    "neusight": "neusight_hooks",
    "neusight.predictors": "predictors",
    "neusight.integrations": "integrations",
}
RUNTIME = ["torch", "torch-tb-profiler", "numpy", "tensorboard", "typing-extensions"]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def pairs(text: str) -> dict[str, str]:
    split = (line.partition("=") for line in lines(text))
    return {name.strip(): value.strip() for name, _, value in split}


@pytest.fixture(scope="module")
def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_every_data_file_is_packaged(config: configparser.ConfigParser) -> None:
    patterns: dict[str, list[str]] = {home: [] for home in HOMES.values()}
    for package, globs in pairs_of(config["options.package_data"]):
        root = max((name for name in HOMES if f"{package}.".startswith(f"{name}.")), key=len)
        folder = "/".join(package.removeprefix(root).strip(".").split("."))
        patterns[HOMES[root]] += [
            f"{folder}/{glob.strip()}".lstrip("/") for glob in globs.split(",")
        ]

    forgotten = [
        str(path.relative_to(ROOT))
        for home in HOMES.values()
        for path in (ROOT / home).rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc")
        and not any(
            fnmatch(path.relative_to(ROOT / home).as_posix(), pattern) for pattern in patterns[home]
        )
    ]

    assert forgotten == []


def pairs_of(section: configparser.SectionProxy) -> list[tuple[str, str]]:
    return [(name, ",".join(lines(value))) for name, value in section.items()]


def test_a_user_installs_five_packages_and_no_more(config: configparser.ConfigParser) -> None:
    required = lines(config["options"]["install_requires"])

    assert [re.split(r"[<>=!~ ]", name)[0] for name in required] == RUNTIME
    assert all(">=" in name for name in required)


def test_entry_points_lead_somewhere(config: configparser.ConfigParser) -> None:
    for group in config["options.entry_points"].values():
        for target in pairs(group).values():
            module, _, _ = target.partition(":")

            assert importlib.util.find_spec(module) is not None, target


def test_the_changelog_ends_at_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    versions = re.findall(r"^## \[(\d[^\]]*)\]", text, flags=re.MULTILINE)

    assert versions[0] == __version__


def test_the_installed_package_is_this_one() -> None:
    assert neusight.__file__ is not None
    home = Path(neusight.__file__).parent

    assert (home / "forecast.py").is_file(), (
        f"another package called neusight is installed at {home}; "
        "run: pip uninstall neusight, then pip install -e ."
    )


@pytest.mark.slow
def test_a_wheel_holds_one_top_level_name_and_all_files(tmp_path: Path) -> None:
    if not has_setuptools(at_least=77):
        pytest.skip("building needs setuptools>=77: pip install 'setuptools>=77'")
    source = tmp_path / "source"
    for name in HOMES.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)

    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)

    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in packaged} == {"neusight"}
    assert len(packaged) == sum(
        path.is_file() and path.suffix != ".pyc"
        for folder in HOMES.values()
        for path in (source / folder).rglob("*")
    )


def has_setuptools(*, at_least: int) -> bool:
    try:
        from importlib.metadata import version

        return int(version("setuptools").split(".")[0]) >= at_least
    except ModuleNotFoundError:
        return False


def without_guard(path: Path) -> set[str]:
    """Top-level names of the packages that a file of tests imports, but for those that it skips
    without: `pytest.importorskip`, or an import in a `try`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        str(call.args[0].value).partition(".")[0]
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("importorskip")
        and isinstance(call.args[0], ast.Constant)
    }
    tried = {node for block in ast.walk(tree) if isinstance(block, ast.Try)
             for statement in block.body for node in ast.walk(statement)}  # fmt: skip
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in tried:
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node not in tried:
            found.add(node.module.partition(".")[0])
    return found - guarded


def needed(requirements: Iterable[str]) -> set[str]:
    """Those distributions and all that they need in turn, by their normalized names."""
    found: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name not in found and name != "neusight-hooks":
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                left += map(Requirement, importlib.metadata.requires(name) or ())
    return found


def test_the_extra_of_the_tests_brings_what_tests_import(
    config: configparser.ConfigParser,
) -> None:
    extras = config["options.extras_require"]
    brought = needed(lines(config["options"]["install_requires"] + extras["test"] + extras["data"]))
    files = sorted((ROOT / "tests").rglob("*.py"))
    # hta_figures.py runs in an environment of its own, as it says.
    own = {path.stem for path in files} | {"neusight", "hta", *CATALOGUE}

    names = set().union(*map(without_guard, files))
    homes = importlib.metadata.packages_distributions()
    missing = {
        name
        for name in names - own - set(sys.stdlib_module_names)
        if not {canonicalize_name(home) for home in homes.get(name, ())} & brought
    }

    assert "neusight-hooks[data]" in lines(extras["test"])
    assert missing == set()


def test_the_readme_prints_the_two_commands_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup = re.findall(r"^    (pip install .*)$", readme, re.MULTILINE)

    run, tests = setup
    assert run.endswith("examples/train_gpt2.py")
    assert tests.endswith("python -m pytest")

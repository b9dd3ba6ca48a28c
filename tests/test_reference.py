"""The reference of the API: every public name is in it, with what it gives, and nothing warns."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import neusight
import neusight.predictors
from places import ROOT

MODULES = (neusight, neusight.predictors)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("pdoc") is None:
        pytest.skip("pdoc is not installed: pip install -e '.[test]'")
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs"), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(folder / "index.html")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [module.__name__ for module in MODULES])
def test_the_page_of_a_module_has_all_its_public_names(pages: Path, name: str) -> None:
    page = (pages / f"{name.replace('.', '/')}.html").read_text()

    shown = set(re.findall(r'<section id="([^"]+)"', page))
    assert shown >= set(sys.modules[name].__all__)


@pytest.mark.slow
def test_the_first_page_leads_to_the_others(pages: Path) -> None:
    assert "neusight.html" in (pages / "index.html").read_text()

    page = (pages / "neusight.html").read_text()
    assert 'href="neusight/predictors.html"' in page


def undescribed(module: object) -> Iterator[str]:
    """The public names, and those of public classes, that do not say what they give."""
    for name in module.__all__:  # type: ignore[attr-defined]  # both have one
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        # A dataclass without words of its own gets its signature.
        if not value.__doc__ or value.__doc__.startswith(f"{name}("):
            yield name
        members = vars(value).items() if inspect.isclass(value) else ()
        for member, found in members:
            reported = getattr(
                found, "__func__", getattr(found, "fget", getattr(found, "func", found))
            )
            if not member.startswith("_") and inspect.isfunction(reported) and not reported.__doc__:
                yield f"{name}.{member}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_says_what_it_gives(module: object) -> None:
    assert list(undescribed(module)) == []

"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib

import pytest

from places import ROOT

#: By the top folder, what its modules are imported from.
PACKAGES = {
    "integrations": "neusight.integrations",
    "neusight_hooks": "neusight",
    "predictors": "neusight.predictors",
}
FILES = [
    str(path.relative_to(ROOT))
    for folder in PACKAGES
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.filterwarnings("ignore")  # of torch, about modules of its own that an example loads
@pytest.mark.parametrize("file", FILES)
def test_examples_hold(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, rest = file.removesuffix(".py").removesuffix("/__init__").partition("/")
    module = importlib.import_module(".".join([PACKAGES[folder], *rest.split("/")]).rstrip("."))

    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    assert found.attempted > 0
    assert found.failed == 0, capsys.readouterr().out

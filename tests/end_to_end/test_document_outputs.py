"""Outputs that documents print, and baselines of the examples, are those of today."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
import torch

from places import ROOT

DOCS = ROOT / "scripts" / "docs"


@pytest.fixture(scope="module")
def docs() -> Any:
    loader = SourceFileLoader("docs", str(DOCS))
    spec = spec_from_loader("docs", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the documents show torch 2.13"
)
def test_every_output_is_what_its_command_prints_today() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS), "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_output_is_found_and_renewed(
    docs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = "start\n\nH100: 2 ms\n  more\nend\n"
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "DOCUMENTS", ("A.md",))
    monkeypatch.setattr(docs, "BASELINES", ())
    monkeypatch.setattr(docs, "printed_by", lambda command: printed)
    document = tmp_path / "A.md"
    comment = "Text.\n\n<!-- output first=1 from=H100 until=more: neusight run x.py -->\n"
    document.write_text(f"{comment}\n    start\n    …\n    H100: 3 ms\n\nAfter.\n")

    assert docs.check() == 1
    docs.write()
    capsys.readouterr()

    assert (
        document.read_text()
        == f"{comment}\n    start\n    …\n    H100: 2 ms\n      more\n\nAfter.\n"
    )
    assert docs.check() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["README.md", "GUIDE.md"])
def test_blocks_that_show_figures_name_their_command(name: str, docs: Any) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    marked = [found["block"] for found in docs._MARKED.finditer(text)]

    left = text
    for block in marked:
        left = left.replace(block, "")
    figures = re.findall(r"^ {2,}.*\b\d+\.\d+ (?:ms|GiB|s a step)\b.*$", left, re.MULTILINE)

    assert marked
    assert figures == []

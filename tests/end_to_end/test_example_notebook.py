"""The example notebook runs from top to bottom in a real kernel, and shows what it is kept with.

NEUSIGHT_UPDATE_GOLDEN=1 writes what it shows into it, without the reports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from notebook_kernel import needs_kernel
from places import ROOT

PATH = ROOT / "examples" / "forecast_in_a_notebook.ipynb"
#: Another version may launch other kernels; the output is the same.
TORCH = "2.13."
#: A file that people read on the web and clone.
MOST_BYTES = 20_000

pytestmark = [needs_kernel, pytest.mark.slow]


@pytest.fixture(scope="module")
def kept() -> Any:
    import nbformat

    return nbformat.read(PATH, as_version=4)


def shown(notebook: Any) -> list[str]:
    """What is below the cells, as plain text."""
    return [text for cell in notebook.cells for text in texts_of(cell)]


def texts_of(cell: Any) -> Iterator[str]:
    for output in joined(cell.get("outputs", [])):
        yield output.text if output.output_type == "stream" else output.data["text/plain"]


def joined(outputs: list[Any]) -> list[Any]:
    """The outputs, what was printed in one: it comes in pieces, cut where the kernel pleases.

    On a loaded machine a cell shows how far it is, of which an empty display is left.
    """
    printed = [output for output in outputs if output.output_type == "stream"]
    others = [
        output
        for output in outputs
        if output.output_type != "stream" and output.get("data") != {"text/plain": ""}
    ]
    text = "".join(output.text for output in printed)
    if not text:
        return others
    return [type(printed[0])({**printed[0], "text": text}), *others]


def test_printed_pieces_are_one_output_and_empty_ones_none() -> None:
    from nbformat.v4 import new_output

    piece, last = (new_output("stream", name="stdout", text=text) for text in ("batch 128:", "\n"))
    cleared = new_output("display_data", data={"text/plain": ""})
    shown_value = new_output("display_data", data={"text/plain": "1"})

    assert [output.text for output in joined([cleared, piece, last])] == ["batch 128:\n"]
    assert joined([cleared, shown_value]) == [shown_value]


def run_through(notebook: Any, folder: Path) -> Any:
    """The notebook as it was run just now; a cell that raises is an error."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=600, resources=resources).execute()


def without_reports(notebook: Any) -> Any:
    """Small, and free of what differs by machine and time."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
            for output in cell.outputs:
                output.get("data", {}).pop("text/html", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def test_it_shows_what_it_is_kept_with(kept: Any, tmp_path: Path) -> None:
    import nbformat

    before = shown(kept)

    ran = run_through(nbformat.from_dict(kept), tmp_path)

    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        nbformat.write(without_reports(ran), PATH)
        return
    assert len(shown(ran)) == len(before)
    frames = [out for cell in ran.cells for out in cell.get("outputs", ()) if has_report(out)]
    assert len(frames) == 1
    if torch.__version__.startswith(TORCH):
        assert shown(ran) == before
    else:
        assert [words(text) for text in shown(ran)] == [words(text) for text in before]


def has_report(output: Any) -> bool:
    return "<iframe " in output.get("data", {}).get("text/html", "")


def words(text: str) -> list[str]:
    """The first words of each line, without figures."""
    return re.findall(r"^\W*([A-Za-z]\w+)", text, re.MULTILINE)[:1]


def test_it_is_small_and_names_no_machine(kept: Any) -> None:
    text = PATH.read_text(encoding="utf-8")

    assert len(text) < MOST_BYTES
    assert not re.search(r"/(home|tmp|root|work|Users)/", text)
    assert next(cell.outputs for cell in kept.cells if cell.cell_type == "code") == []
    assert any("H100-SXM5-80GB: fits" in text for text in shown(kept))

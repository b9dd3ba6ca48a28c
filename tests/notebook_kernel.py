"""A notebook whose cells a real kernel runs, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

#: No cell of a test takes that long, however loaded the machine: it hangs.
_HANGS_AFTER_S = 600

needs_kernel = pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient and ipykernel are not installed (pip install 'neusight-hooks[test]')",
)


class Shown(NamedTuple):
    """What a notebook shows below a cell: what it printed, what it displayed by type, and how it
    failed, if it did, with the traceback."""

    stdout: str
    stderr: str
    displayed: list[dict[str, Any]]
    error: str
    traceback: str

    @property
    def texts(self) -> list[str]:
        """What it displayed, as plain text."""
        return [data["text/plain"] for data in self.displayed]


class Kernel:
    """Runs cells in the kernel of a notebook."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, source: str) -> Shown:
        """What is shown below a cell with that source."""
        from nbformat.v4 import new_code_cell

        cell = new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        outputs = cell.outputs
        errors = [output for output in outputs if output.output_type == "error"]
        return Shown(
            stdout=_text(outputs, "stdout"),
            stderr=_text(outputs, "stderr"),
            displayed=[output.data for output in outputs if "data" in output],
            error="".join(f"{error.ename}: {error.evalue}" for error in errors),
            traceback=_plain("".join("\n".join(error.traceback) for error in errors)),
        )


def _text(outputs: list[Any], name: str) -> str:
    return "".join(output.text for output in outputs if output.get("name") == name)


def _plain(text: str) -> str:
    """Without colours."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@contextmanager
def running_kernel(folder: Path) -> Iterator[Kernel]:
    """A notebook in that folder, until the block ends."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_notebook

    client = NotebookClient(
        new_notebook(),
        timeout=_HANGS_AFTER_S,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel():
        yield Kernel(client)

"""The plugin's pages ask nothing of the network that they cannot do without."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch_tb_profiler.plugin import TorchProfilerPlugin
from werkzeug.test import Client

from neusight.integrations.frameworks import tensorboard_pages
from neusight.integrations.frameworks.tensorboard_repair import repair

FOLDER = Path(tensorboard_pages.__file__).parent


def served(name: str) -> Any:
    """What the plugin answers, without the runs that it would look for."""
    repair()
    plugin = object.__new__(TorchProfilerPlugin)
    return Client(plugin.get_plugin_apps()[f"/{name}"]).get(f"/{name}")


def scripts_of(page: str) -> list[str]:
    return re.findall(r"<script[^>]* src=\"?([^\s\">]+)", page)


def test_the_trace_viewer_takes_its_polyfill_from_here() -> None:
    answer = served("trace_embedding.html")

    assert answer.mimetype == "text/html"
    assert scripts_of(answer.text) == ["webcomponents.min.js"]
    assert served("webcomponents.min.js").data == (FOLDER / "webcomponents.min.js").read_bytes()


def test_the_polyfill_is_the_one_that_the_page_asks_for_and_bears_its_licence() -> None:
    script = (FOLDER / "webcomponents.min.js").read_text(encoding="utf-8")

    assert "// @version 0.7.24\n" in script
    assert "Redistributions in binary form must reproduce the above" in script


def test_charts_that_do_not_come_are_drawn_from_here() -> None:
    page = served("index.html").text

    [head] = re.findall(r"<head>.*?</head>", page, re.DOTALL)
    first, fallback = re.findall(r"<script.*?(?<!\\\\)</script>", head, re.DOTALL)
    assert "gstatic.com" in first
    assert fallback.startswith("<script>window.google || document.write(")
    assert "tensorboard_charts.js" in fallback
    answer = served("tensorboard_charts.js")
    assert answer.mimetype == "application/javascript"
    assert answer.data == (FOLDER / "tensorboard_charts.js").read_bytes()


def test_the_other_pages_are_the_plugins_own() -> None:
    assert "document.location.href" in served("index.js").text


#: Draws one chart of each kind into elements that only keep what they are given.
DRAW = """
globalThis.window = globalThis;
const ruler = {measureText: text => ({width: 6 * text.length})};
globalThis.document = {createElement: () => ({getContext: () => ruler})};
require(process.argv[1]);
const {visualization: charts} = google;
const data = charts.arrayToDataTable([["step", "ms", "us"], ["<1>", 2, 3], ["2", 4, 0]]);
for (const kind of ["PieChart", "ColumnChart", "SteppedAreaChart", "LineChart", "Table"]) {
  const element = {clientWidth: 400};
  new charts[kind](element).draw(data, {title: "a & b", isStacked: true});
  console.log(kind, element.innerHTML.includes("NaN"), element.innerHTML.includes("&#60;1&#62;"));
}
const element = {};
new charts.Table(element).draw(new charts.DataTable());
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_each_kind_of_chart_is_drawn() -> None:
    done = subprocess.run(
        ["node", "-e", DRAW, str(FOLDER / "tensorboard_charts.js")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    kinds = ("PieChart", "ColumnChart", "SteppedAreaChart", "LineChart", "Table")
    assert done.stdout.splitlines() == [f"{kind} false true" for kind in kinds]

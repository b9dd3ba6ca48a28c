"""TensorBoard in a real browser: every view of the profiler plugin shows the forecast.

Needs Chromium and its driver (Debian: chromium, chromium-driver), which reach this machine alone.
Screenshots go to the folder that NEUSIGHT_SCREENSHOTS names, else to the test's temporary one.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import NEEDED, Browser, wait_for
from torch import nn

import neusight
from neusight.integrations.profiles.workloads import loaded
from neusight.output.trace.file import write_trace
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    TensorSpec,
)
from neusight.timeline.host import PLAIN
from neusight.timeline.steps import schedule
from places import ROOT, TESTS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(NEEDED), reason=NEEDED)]


class PluginBrowser(Browser):
    """One that knows the select boxes of the plugin's pages."""

    def choose(self, label: str, option: str, *, nth: int = 0) -> None:
        """Picks an option of the select box below the nth label of that name."""
        opened = """
            const labels = [...document.querySelectorAll("*")].filter(
                e => e.children.length === 0 && e.textContent.trim() === arguments[0]);
            let box = labels[arguments[1]];
            while (box && !box.querySelector(".MuiSelect-root")) box = box.nextElementSibling
                || box.parentElement;
            box.querySelector(".MuiSelect-root").dispatchEvent(
                new MouseEvent("mousedown", {bubbles: true, button: 0}));
        """
        picked = """
            const [item] = [...document.querySelectorAll("li[role=option]")].filter(
                e => e.textContent === arguments[0]);
            if (item) item.click();
            return Boolean(item);
        """
        self.run(opened, label, nth)
        wait_for(lambda: self.run(picked, option), lambda: f"{label} offers no {option}")
        wait_for(
            lambda: not self.run("return document.querySelector('li[role=option]') !== null"),
            lambda: f"the list of {label} stays open",
        )


# -- what is shown


def train() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def write_two_ranks(folder: Path) -> None:
    spec = TensorSpec((64,), (1,), "float32")

    def op(name: str) -> OpCall:
        signature = OpSignature(name, "default", (("x", spec),), (spec,))
        return OpCall(signature, MathMode(), "", "backward", 0, 0, "MmBackward0")

    def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
        estimate = Estimate(50, 50, 50, "memory", "physics", "test")
        product = Kernel.gemm(512, 512, 512)
        reduction = Kernel.collective("all_reduce", 2**22, 2)
        return ((product if call.signature.op == "aten::mm" else reduction, estimate),)

    entries: tuple[Entry, ...] = (op("aten::mm"), op("c10d::allreduce_")) * 3
    recording = Recording((Step("train", entries, 4),), gpu="H100", torch_version="2")
    timeline = schedule(recording, price, PLAIN)
    folder.mkdir()
    for rank in range(2):
        path = folder / f"host_{rank}.1.pt.trace.json.gz"
        write_trace(path, timeline, None, find_gpu("H100"), rank=rank, world_size=2)


#: A step that was profiled on an H100, and what made it.
MEASURED = ROOT / "benchmarks" / "measured" / "h100" / "workloads"
WORKLOAD = "gpt2_inference"


def write_measured(folder: Path) -> None:
    """The profile of a step, and its forecast."""
    figures = json.loads((MEASURED / f"{WORKLOAD}.json").read_text())
    script, *arguments = figures["command"]
    handler = neusight.trace_handler(folder / "its-forecast", worker_name="host_0")
    with (
        neusight.forecast_on("H100", on_trace_ready=handler) as forecast,
        loaded(ROOT / "benchmarks" / "workloads" / script) as module,
    ):
        step = module.build(module.parser().parse_args(arguments))
        for _ in range(3):
            step()
            forecast.step()
    (folder / "profile").mkdir()
    profile = folder / "profile" / "host_0.1.pt.trace.json.gz"
    profile.symlink_to(MEASURED / f"{WORKLOAD}.pt.trace.json.gz")


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    handler = neusight.trace_handler(folder / "forecast", worker_name="host_0")
    with neusight.forecast_on("H100", on_trace_ready=handler) as forecast:
        train()
    neusight.trace_handler(folder / "on-a100", worker_name="host_0")(forecast.on("A100"))
    write_two_ranks(folder / "ranks")
    write_measured(folder)
    return folder


@pytest.fixture(scope="module")
def address(logdir: Path) -> Iterator[str]:
    """TensorBoard with what is installed, entry points and all, until the tests are done."""
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "tensorboard_server.py"), str(logdir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        assert url, "TensorBoard did not start"

        def loaded() -> bool:
            with urllib.request.urlopen(f"{url}data/plugin/pytorch_profiler/runs") as answer:
                return len(json.load(answer)["runs"]) == 5

        wait_for(loaded, lambda: "the plugin did not load the runs")
        yield url
    finally:
        server.communicate("")


@pytest.fixture(scope="module")
def browser() -> Iterator[PluginBrowser]:
    browser = PluginBrowser(arguments=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("NEUSIGHT_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(browser: PluginBrowser, address: str) -> PluginBrowser:
    browser.open(f"{address}data/plugin/pytorch_profiler/index.html")
    browser.wait_for_text("Runs", "Views", "Configuration")
    return browser


def test_tensorboard_offers_the_plugin(
    browser: PluginBrowser, address: str, screenshots: Path
) -> None:
    browser.open(address)

    browser.wait_for_text("PYTORCH_PROFILER")
    browser.screenshot(screenshots / "tensorboard.png")


#: For each view what its page must say.
VIEWS = {
    "Overview": ("NVIDIA H100 80GB HBM3", "GPU Utilization", "Average Step Time", "Kernel"),
    "Operator": ("Device Self Time (us)", "aten::addmm", "Tensor Cores Eligible"),
    "GPU Kernel": ("Total Time (us)", "Tensor Cores Utilization", "xmma_gemm", "Calls"),
    "Memory": ("Memory View", "GPU0", "aten::addmm", "Peak Memory Usage"),
    "Module": ("Module View", "Sequential_0", "Linear_1", "GELU_0"),
}


#: Labels of charts that reach out of their chart or lie over another one.
MISPLACED_LABELS = """
    const misplaced = [];
    for (const chart of document.querySelectorAll("svg[font-family]")) {
        const frame = chart.getBoundingClientRect();
        const labels = [...chart.querySelectorAll("text")].filter(text => text.textContent.trim());
        const boxes = labels.map(label => label.getBoundingClientRect());
        labels.forEach((label, nth) => {
            const box = boxes[nth];
            const isOut = box.left < frame.left - 1 || box.right > frame.right + 1;
            const isOver = boxes.some((other, at) => at < nth && box.left < other.right - 1
                && other.left < box.right - 1 && box.top < other.bottom - 4
                && other.top < box.bottom - 4);
            if (isOut || isOver) misplaced.push(label.textContent);
        });
    }
    return misplaced;
"""


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_the_view_shows_the_forecast(page: PluginBrowser, view: str, screenshots: Path) -> None:
    page.choose("Runs", "forecast")
    page.wait_for_text("host_0")
    if view != "Overview":
        page.choose("Views", view)

    page.wait_for_text(*VIEWS[view])
    page.screenshot(screenshots / f"{view.lower().replace(' ', '-')}.png")
    assert page.run(MISPLACED_LABELS) == []


def test_the_trace_is_drawn_in_the_viewer(page: PluginBrowser, screenshots: Path) -> None:
    page.choose("Runs", "forecast")
    page.choose("Views", "Trace")

    tracks = """
        const viewer = document.querySelector("iframe")?.contentDocument;
        return viewer?.body?.textContent || "";
    """
    names = ("H100-SXM5-80GB (forecast)", "stream 7 (default)")
    wait_for(
        lambda: all(name in page.run(tracks) for name in names),
        lambda: f"the viewer has no tracks: {page.run(tracks)[:500]}",
    )
    page.screenshot(screenshots / "trace.png")


def test_the_overview_has_its_charts(page: PluginBrowser, screenshots: Path) -> None:
    page.choose("Runs", "forecast")
    page.wait_for_text("Step Time Breakdown")

    columns = "return document.querySelectorAll('svg rect').length"
    wait_for(lambda: page.run(columns) >= 5, lambda: "no chart of the steps is drawn")


def test_the_text_tab_states_the_verdict_and_the_advice(
    browser: PluginBrowser, address: str, screenshots: Path
) -> None:
    browser.open(f"{address}?runFilter=forecast#text")

    within = """
        const texts = [];
        const read = node => {
            if (node.nodeType === Node.TEXT_NODE) texts.push(node.data);
            if (node.shadowRoot) read(node.shadowRoot);
            for (const child of node.childNodes || []) read(child);
        };
        read(document.body);
        return texts.join(" ");
    """
    names = ("H100-SXM5-80GB: fits", "What to change (each alone)", "per training step")
    wait_for(
        lambda: all(name in browser.run(within) for name in names),
        lambda: f"the tab does not show it: {browser.run(within)[-1000:]}",
    )
    browser.screenshot(screenshots / "text.png")


def test_ranks_are_laid_beside_each_other(page: PluginBrowser, screenshots: Path) -> None:
    page.choose("Runs", "ranks")
    page.choose("Views", "Distributed")

    page.wait_for_text(
        "Device Information", "Computation/Communication Overview", "nccl:all_reduce", "GPU1"
    )
    page.screenshot(screenshots / "distributed.png")


def lay_beside_each_other(page: PluginBrowser, *runs: str) -> None:
    """Opens the Diff view with those runs as baseline and experiment."""
    page.run("[...document.querySelectorAll('[role=tab]')].pop().click()")
    page.wait_for_text("Baseline", "Experimental")
    for nth, run in enumerate(runs):
        page.choose("Runs", run, nth=nth)
        page.choose("Workers", "host_0", nth=nth)
        page.choose("Spans", "1", nth=nth)


def test_two_forecasts_are_laid_beside_each_other(page: PluginBrowser, screenshots: Path) -> None:
    lay_beside_each_other(page, "forecast", "on-a100")

    page.wait_for_text("Baseline", "Experimental", "aten::addmm")
    page.screenshot(screenshots / "diff.png")
    click = """
        const bar = document.querySelector("rect[data-row]");
        bar?.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        return [...document.querySelectorAll("button")].some(
            e => e.textContent.includes("Go Back") && !e.disabled);
    """
    wait_for(lambda: page.run(click), lambda: "a click on a column leads nowhere")


def test_a_profile_and_its_forecast_are_laid_beside_each_other(
    page: PluginBrowser, address: str, screenshots: Path
) -> None:
    lay_beside_each_other(page, "profile", "its-forecast")

    page.wait_for_text("Operator View", "aten::copy_")
    page.screenshot(screenshots / "diff-with-a-profile.png")
    shown = page.run("""
        return [...document.querySelectorAll("tbody tr")].map(
            row => [...row.cells].slice(0, 3).map(cell => cell.textContent));
    """)
    query = "run=profile&worker=host_0&span=1&exp_run=its-forecast&exp_worker=host_0&exp_span=1"
    with urllib.request.urlopen(f"{address}data/plugin/pytorch_profiler/diff?{query}") as answer:
        sides = json.loads(gzip.decompress(answer.read()))
    calls, forecast_calls = (
        {row["name"]: row["calls"] for row in sides[side]["aggs"]} for side in ("left", "right")
    )
    assert len(calls) > 30
    assert {name for name in calls if calls[name]} == {n for n in calls if forecast_calls[n]}
    assert len([name for name in calls if calls[name] == forecast_calls[name]]) > 0.8 * len(calls)
    rows = [row for row in shown if len(row) == 3 and row[0] in calls]
    assert rows
    for name, baseline, experiment in rows:
        assert (int(baseline), int(experiment)) == (calls[name], forecast_calls[name]), name

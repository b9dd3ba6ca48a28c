"""The HTML report: complete, self-contained, and safe whatever things are named."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import astuple, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.advice.advice import Advice
from neusight.forecast import Forecast
from neusight.integrations.report import html
from neusight.integrations.report.html import html_report, report_date
from neusight.integrations.report.page.colours import KINDS
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.section import _details
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.recording.recording import CompiledFrame, GraphBreak, Recording
from neusight.recording.saving import load_recording, save_recording

HOSTILE = '</script><img src=x onerror="document.title=1">&"\'<b>'
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
ADVICE = [Advice("k", f"change {HOSTILE}", 1000.0, 0.25, f"assumes {HOSTILE}")]


def program(target: str | GPU = "H100") -> Forecast:
    hostile = type(HOSTILE, (nn.Linear,), {})
    with neusight.forecast_on(target) as forecast:
        model = nn.Sequential(hostile(64, 64), nn.ReLU(), nn.LayerNorm(64)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            with torch.profiler.record_function(HOSTILE):
                loss = model(torch.randn(32, 64, device="cuda")).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    return forecast


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Forecast:
    """A forecast in which all that has a name has a hostile one."""
    target = replace(find_gpu("H100"), name=f"H100 {HOSTILE}", aliases=(), driver_name=HOSTILE)
    recording = program(target).recording
    named = replace(recording, script=HOSTILE, warnings=(HOSTILE,))
    return Forecast(named, replace(program().options, gpu=target))


class Elements(HTMLParser):
    """Every element with its attributes, and the text of those that hold raw text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag if tag in self.raw else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside].append(data)
        else:
            self.text += data


def test_hostile_names_stay_text(hostile: Forecast) -> None:
    page = Elements(html_report([hostile, hostile], advice=[ADVICE, ADVICE]))

    assert {tag for tag, _ in page.found} & {"img", "b", "iframe", "a", "link"} == {"b"}
    bold = [attributes for tag, attributes in page.found if tag == "b"]
    assert bold == [{}] * len(bold)  # the figures on the cards
    assert not [name for _, attributes in page.found for name in attributes if name[:2] == "on"]
    assert HOSTILE in page.text  # and it can be read
    assert page.raw["title"] == [f"{HOSTILE} · neusight"]
    # For each a timeline and a tree, that of both, and the page's own script.
    assert len(page.raw["script"]) == 6


def test_only_the_pages_own_script_and_style_may_run(hostile: Forecast) -> None:
    page = Elements(html_report([hostile]))

    [policy] = [
        attributes["content"] or ""
        for tag, attributes in page.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (page.raw["style"][0], page.raw["script"][-1])
    ]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not [attributes for _, attributes in page.found if "style" in attributes]


def test_nothing_is_loaded_from_anywhere(hostile: Forecast) -> None:
    text = html_report([hostile])

    assert not re.search(r"https?://|@import|url\(", text)
    assert not [a for _, a in Elements(text).found if {"src", "href"} & set(a)]


def test_the_timeline_holds_the_steady_step() -> None:
    forecast = program()
    data = json.loads(Elements(html_report([forecast])).raw["script"][0])

    names = [lane["name"] for lane in data["lanes"]]
    assert names == [
        "steps", "phases, on the GPU", "modules, on the GPU", "GPU, stream 0", "host, main thread",
        "host, autograd thread", "operators, main thread", "operators, autograd thread",
    ]  # fmt: skip
    assert [lane.get("optional", False) for lane in data["lanes"]] == [False] * 6 + [True] * 2
    operators = {data["texts"][span[3]] for lane in data["lanes"][6:] for span in lane["spans"]}
    assert {"aten::linear", "aten::addmm"} <= {name.split(" and ")[0] for name in operators}
    spans = [span for lane in data["lanes"] for span in lane["spans"]]
    start_us, end_us = data["start_us"] - 0.01, data["end_us"] + 0.01
    assert all(span[0] >= start_us and span[0] + span[1] <= end_us for span in spans)
    assert all(span[2] < lane["num_rows"] for lane in data["lanes"] for span in lane["spans"])
    kernels = data["lanes"][3]["spans"]
    assert len(kernels) >= forecast.verdict.num_kernels
    assert HOSTILE in data["texts"]


@pytest.fixture(scope="module")
def busy() -> Forecast:
    """A GPU so busy that the host runs steps ahead of it."""
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            model(torch.randn(8192, 8192, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return forecast


def timeline_of(forecast: Forecast) -> tuple[dict[str, Any], dict[str, list[list[Any]]]]:
    """What the page's script draws, and its spans by lane, with texts for their numbers."""
    data = json.loads(Elements(html_report([forecast])).raw["script"][0])
    kinds = list(KINDS)
    return data, {
        lane["name"]: [
            [*span[:3], data["texts"][span[3]], data["texts"][span[6]], kinds[span[4]]]
            for span in lane["spans"]
        ]
        for lane in data["lanes"]
    }


def test_the_step_is_as_long_as_the_headline_says_and_the_backlog_is_grey(busy: Forecast) -> None:
    data, lanes = timeline_of(busy)

    assert data["end_us"] == pytest.approx(busy.step_latency_us.median, abs=0.01)
    assert data["start_us"] < -data["end_us"]  # the host is more than a step ahead
    kernels = lanes["GPU, stream 0"]
    assert {span[5] == "before" for span in kernels} == {True, False}
    for start, duration, *_, kind in kernels:
        assert (start + duration <= 0.001) if kind == "before" else (start >= -0.001)
    own = [span for span in kernels if span[5] != "before"]
    assert len(own) == busy.verdict.num_kernels
    assert sum(span[1] for span in own) == pytest.approx(busy.gpu_busy_us, rel=1e-3)
    assert "it runs ahead of the GPU" in html_report([busy])


def test_phases_and_modules_have_lanes(busy: Forecast) -> None:
    _, lanes = timeline_of(busy)

    phases = lanes["phases, on the GPU"]
    assert [span[3] for span in phases] == ["forward", "backward", "optimizer"]
    assert all(a[0] + a[1] <= b[0] for a, b in pairwise(phases))
    modules = lanes["modules, on the GPU"]
    assert [span[3] for span in modules if span[2] == 0] == ["Sequential", "Sequential"]
    assert [span[4] for span in modules if span[2] == 1] == [
        f"Sequential.{name}" for name in ("0", "1", "2", "2", "1", "0")
    ]


def test_a_host_that_waits_begins_with_the_step() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(64, 64).cuda()
        for _ in range(3):
            model(torch.randn(8, 64, device="cuda"))
            torch.cuda.synchronize()
            forecast.step()

    page = html_report([forecast])
    data = json.loads(Elements(page).raw["script"][0])

    assert data["start_us"] == 0
    assert "The step is from 0 to" in page


def test_a_span_inside_another_lies_below_it_and_in_its_time() -> None:
    data = json.loads(Elements(html_report([program()])).raw["script"][0])

    main = data["lanes"][4]["spans"]
    for span in (span for span in main if span[2] > 0):
        assert any(
            above[2] == span[2] - 1
            and above[0] <= span[0] + 1e-6
            and above[0] + above[1] >= span[0] + span[1] - 1e-6
            for above in main
        )


def test_figures_tables_and_the_memory_curve_are_there() -> None:
    forecast = program()
    page = Elements(html_report([forecast], advice=[ADVICE]))

    for words in ("What to change", "-25%", "Alive at the peak", "By op", "aten::addmm"):
        assert words in page.text
    assert [tag for tag, _ in page.found].count("svg") == 1
    [curve] = [a["points"] or "" for tag, a in page.found if tag == "polyline"]
    assert len(curve.split()) > 10


def test_several_gpus_stand_side_by_side_with_costs() -> None:
    forecast = program()

    page = Elements(html_report([forecast, forecast.on("T4")], prices={"T4": 0.5, "H100": 2}))

    assert "Side by side" in page.text
    assert "price/h" in page.text
    assert [a.get("data-source") for tag, a in page.found if tag == "canvas"] == [
        "timeline-all", "timeline-0", "timeline-1",
    ]  # fmt: skip


def test_what_was_compiled_has_tables_with_lines_and_reasons(hostile: Forecast) -> None:
    stop = GraphBreak("net.py:7", "net.py:7", f"no {HOSTILE}")
    frames = (
        CompiledFrame("0/0", "step", "net.py:5", 3, breaks=(stop,)),
        CompiledFrame("0/1", "step", "net.py:5", 3, f"size {HOSTILE}", "net.py:5"),
    )
    compiled = hostile.of(replace(hostile.recording, compiled=frames))

    page, before = html_report([compiled]), html_report([hostile])

    assert "What torch.compile made of it" in page
    assert "What torch.compile made of it" not in before
    assert {"net.py:7", "net.py:5"} <= set(
        re.findall(r"<td>(net[^/]+)</td>", page.replace("<wbr>", ""))
    )
    assert HOSTILE not in page


def test_equal_forecasts_give_equal_bytes(tmp_path: Path) -> None:
    forecast = program()
    save_recording(forecast.recording, tmp_path / "r.json", gpu="H100")
    recording, _ = load_recording(tmp_path / "r.json")

    assert html_report([forecast]) == html_report([forecast.of(recording)])


def test_a_program_that_does_not_fit_says_so_in_the_curve_and_the_verdict() -> None:
    small = replace(
        find_gpu("H100"), name="small", aliases=(), memory_bytes=find_gpu("H100").context_bytes // 2
    )

    text = html_report([program(small)])

    assert '<span class="bad">does not fit</span>' in text
    assert "out of memory in step" in text
    assert "What would make it fit" in text
    assert 'class="capacity"' in text


def test_a_program_without_kernels_says_so_and_has_nothing_empty() -> None:
    nothing = program().of(Recording((), gpu="H100", torch_version="2.13"))
    with neusight.forecast_on("H100") as only_memory:
        for _ in range(3):
            torch.empty(1024, device="cuda")
            only_memory.step()

    first, second = (
        Elements(html_report([forecast], advice=[ADVICE])) for forecast in (nothing, only_memory)
    )
    assert "Nothing to forecast: nothing was put on the GPU. Move the model" in first.text
    assert "3 ops recorded on the GPU, and none in the steady step launches" in second.text
    assert "What to change" not in first.text + second.text
    assert not {"canvas", "table", "svg"} & {tag for tag, _ in first.found}


def test_the_command_and_the_date_are_reported_if_given(hostile: Forecast) -> None:
    reported = Elements(html_report([hostile], command=f"neusight {HOSTILE}", date="2026-01-31"))

    assert f"neusight {HOSTILE}" in reported.text
    assert ", 2026-01-31, recorded with torch" in reported.text
    silent = Elements(html_report([hostile]))
    assert "code" not in {tag for tag, _ in silent.found}


def test_the_date_is_the_day_that_the_environment_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert report_date() == "1970-01-02"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
    assert report_date() == ""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(OptionError, match="SOURCE_DATE_EPOCH is 'yesterday'; it wants seconds"):
        report_date()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", report_date())


def test_different_programs_are_called_that_before_they_are_compared() -> None:
    forecast = program()
    other = forecast.of(replace(forecast.recording, script="other.py"))
    several = Elements(html_report([forecast, other]))

    stated = "These are forecasts of different programs: "
    assert several.text.index(stated) < several.text.index("A step of each")
    assert stated not in html_report([forecast, forecast.on("T4")])


@pytest.mark.slow
def test_a_page_is_small_whatever_is_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three thousand layers with names of hundreds of characters."""
    with neusight.forecast_on("H100") as forecast:
        layers = [nn.Linear(8, 8, bias=False) for _ in range(1500)]
        model = nn.Sequential(*layers[:750]).cuda()
        named = nn.ModuleDict({f"layer_{n}_" + "x" * 300: m for n, m in enumerate(layers[750:])})
        named.cuda()
        for _ in range(2):
            x = model(torch.randn(4, 8, device="cuda"))
            for layer in named.values():
                x = layer(x)
            forecast.step()

    text = html_report([forecast, forecast.on("T4")])

    assert len(text.encode()) < 1_000_000
    assert "are drawn as one with their neighbours" in text
    assert "x" * 300 not in text
    monkeypatch.setattr(html, "_MOST_BYTES", len(text.encode()) // 2)
    assert len(html_report([forecast, forecast.on("T4")]).encode()) < len(text.encode()) // 2


@pytest.mark.parametrize(
    ("num_bytes", "details"),
    [
        ([999_999], [(9000, 300, 6000)]),
        ([1_000_000, 500_001], [(9000, 300, 6000), (4500, 150, 3000)]),
        ([2 * 10**6] * 9, [(max(60, 9000 >> n), max(10, 300 >> n), 6000 >> n) for n in range(9)]),
    ],
)
def test_a_page_of_a_million_bytes_is_drawn_again_with_half_the_detail(
    num_bytes: list[int], details: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, ...]] = []
    pages = iter(num_bytes)

    def page(_: object, detail: Detail) -> str:
        shown.append(astuple(detail))
        return "ä" * (next(pages) // 2) + "x" * (num_bytes[0] % 2)

    monkeypatch.setattr(html, "_page", page)
    one: Any = object()

    html_report([one], labels=["one"])

    assert shown == details
    shown.clear()
    pages = iter([2])
    html_report([one] * 3, labels=["a", "b", "c"])
    assert shown == [(3000, 100, 2000)]


@pytest.mark.parametrize(
    ("num", "prices", "failure", "is_compared", "note"),
    [
        (1, {}, "", False, ""), (1, {"T4": 1.0}, "", True, ""), (2, {}, "", True, ""),
        (2, {}, "it failed", False, ""), (12, {}, "", True, ""),
        (13, {}, "", True, "The first 12 of 13 have a part of their own"),
    ],
)  # fmt: skip
def test_several_forecasts_are_compared_and_twelve_have_a_part(
    num: int, prices: dict[str, float], failure: str, is_compared: bool, note: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("_head", "_opening"):
        monkeypatch.setattr(html, name, lambda *_: [])
    monkeypatch.setattr(html, "section_of", lambda _, number, *__: [f"part {number};"])
    monkeypatch.setattr(html, "view_of_several", lambda *_, **__: "the table")
    one: Any = SimpleNamespace(failure=failure, recording=SimpleNamespace(script="a.py"))
    labels = [str(number) for number in range(num)]
    whole = html._Whole([one] * num, (), prices, "", "", labels, None)

    page = html._page(whole, html._DETAIL)

    assert ("the table" in page) is is_compared
    parts = [number for number in range(14) if f"part {number};" in page]
    assert parts == [*range(min(num, 12))]
    assert ("The first" in page) is (note != "") and note in page


@pytest.mark.parametrize(
    ("num", "words"), [(0, "0 host waits"), (1, "1 host wait"), (1200, "1,200 host waits")]
)
def test_waits_are_counted_in_words(num: int, words: str) -> None:
    verdict = SimpleNamespace(
        coverage={"trained": 0.0, "physics": 1.0}, num_synchronizations=num, bound="host",
        gpu_busy_us=5.0, num_kernels=1, num_ops=2,
    )  # fmt: skip
    one: Any = SimpleNamespace(verdict=verdict)

    assert _details(one) == [
        "host-bound, GPU busy 5.0 µs a step", "1 kernel of 2 ops", f"{words} for the GPU",
        "kernel time priced: 100% physics",
    ]  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rate_of_several_ranks_says_how_many(world_size: int) -> None:
    with neusight.forecast_on("H100", world_size=world_size) as forecast:
        layer = nn.Linear(64, 64).cuda()
        for _ in range(2):
            layer(torch.ones(8, 64, device="cuda")).sum().item()

    text = html_report([forecast])

    assert (f"a second on {world_size} ranks; " in text) is (world_size > 1)
    assert "samples a second" in text


def test_many_forecasts_share_a_page() -> None:
    forecast = program()

    text = html_report([forecast] * 14)

    assert len(text.encode()) < 1_000_000
    assert "The first 12 of 14 have a part of their own" in text
    assert text.count("<h3>Modules</h3>") == 12


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page with")
def test_a_browser_draws_the_page_and_runs_nothing_else(hostile: Forecast, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report([hostile], advice=[ADVICE]))

    done = subprocess.run(
        [CHROMIUM or "", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True,
    )  # fmt: skip

    assert re.search(r'<canvas class="timeline"[^>]*style="height: \d+px', done.stdout)
    assert "<title>1</title>" not in done.stdout
    assert "CONSOLE" not in done.stderr  # neither errors nor refusals

"""What a notebook shows of a forecast: words that stand alone, and the report in a frame."""

from __future__ import annotations

import warnings
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report


class Frames(HTMLParser):
    """The attributes of each frame, and the text around them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.frames: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "iframe":
            self.frames.append(dict(attrs))
        assert tag in ("div", "p", "strong", "br", "iframe")

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def forecast_of(name: str = "Linear") -> Forecast:
    layer = type(name, (torch.nn.Linear,), {})
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        layer(64, 64).cuda()(torch.ones(8, 64, device="cuda")).sum().item()
    return forecast


@pytest.mark.parametrize("name", ["Linear", "L'&amp;\"<b>'</iframe>"], ids=["plain", "hostile"])
def test_the_report_lies_in_a_frame_that_reaches_nothing(name: str) -> None:
    forecast = forecast_of(name)

    [frame] = Frames(neusight.notebook_html(forecast)).frames

    assert frame["srcdoc"] == html_report([forecast])
    assert frame["sandbox"] == "allow-scripts"
    assert frame["title"] == "Report of the forecast on H100-SXM5-80GB"
    assert frame["style"] == "width: 100%; height: 620px; border: 1px solid #8886; resize: vertical"


def test_the_words_stand_alone() -> None:
    forecast = forecast_of()

    lines = Frames(forecast._repr_html_() or "").text.splitlines()

    assert lines[0] == forecast.summary().split("\n")[0]
    assert lines[1].startswith("GPU time: ")
    assert " of 79.18 GiB; priced: " in lines[2]
    assert lines[3].startswith("note: values that only a GPU can compute were read and invented")


def test_the_three_classes_that_take_most_are_named() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        torch.layer_norm(torch.relu(x), (64,)).softmax(-1).sum()

    [_, line, *_] = Frames(neusight.notebook_html(forecast)).text.splitlines()

    rows = forecast.verdict.by_kernel_class
    assert len(rows) > 3
    named = ", ".join(f"{row.name} {row.share:.0%}" for row in rows[:3])
    assert line == f"GPU time: {named}; MFU {forecast.mfu:.1%}"


@pytest.mark.parametrize(
    ("num_notes", "more"),
    [(3, []), (4, ["1 more note in the report"]), (5, ["2 more notes in the report"])],
)
def test_of_many_notes_the_first_are_shown(num_notes: int, more: list[str]) -> None:
    forecast = forecast_of()
    warned = forecast.of(
        replace(forecast.recording, warnings=("<a>", "b", "c", "d", "e")[:num_notes])
    )

    lines = Frames(warned._repr_html_() or "").text.splitlines()

    assert lines[3:] == ["note: <a>", "note: b", "note: c", *more]


def test_a_program_that_failed_says_so_and_shows_what_was_recorded() -> None:
    with pytest.raises(ZeroDivisionError), neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").add_(1 / 0)

    shown = Frames(forecast._repr_html_() or "")

    assert shown.text.startswith(
        "H100-SXM5-80GB: the script failed\nZeroDivisionError: division by zero\n"
    )
    assert len(shown.frames) == 1


def test_a_block_without_cuda_work_has_words_and_no_report() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with neusight.forecast_on("H100") as forecast:
            pass

    shown = Frames(forecast._repr_html_() or "")

    assert shown.text.startswith("H100-SXM5-80GB: nothing to forecast\n")
    assert "note: no CUDA work was recorded" in shown.text
    assert shown.frames == []


def test_an_open_forecast_shows_its_plain_text() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda")
        shown = forecast._repr_html_()

    assert shown is None

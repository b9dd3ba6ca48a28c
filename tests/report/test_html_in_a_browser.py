"""The report in a real browser: sorted, searched, folded, driven by keys, on a phone, on paper.

Needs Chromium and its driver (Debian: chromium, chromium-driver). Screenshots go to the folder that
NEUSIGHT_SCREENSHOTS names, where it is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest
import torch
from browser import NEEDED, Browser
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report

pytestmark = pytest.mark.skipif(bool(NEEDED), reason=NEEDED)

WIDE, PHONE = (1280, 800), (390, 844)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    with neusight.forecast_on("H100") as forecast:
        model = Net().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return forecast


@pytest.fixture(scope="module")
def folder(forecast: Forecast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One forecast, two side by side, and one in a frame as notebooks have it."""
    folder = tmp_path_factory.mktemp("report")
    page = html_report([forecast], command="neusight run --gpu H100 train.py", date="2026-01-31")
    (folder / "one.html").write_text(page)
    (folder / "two.html").write_text(html_report([forecast, forecast.on("L40S")]))
    frame = (
        f'<iframe sandbox="allow-scripts" width=900 height=500 srcdoc="{escape(page)}"></iframe>'
    )
    (folder / "framed.html").write_text(f"<!doctype html><p>above</p>{frame}<p>below</p>")
    return folder


@pytest.fixture(scope="module")
def wide() -> Iterator[Browser]:
    browser = Browser(width=WIDE[0], height=WIDE[1])
    yield browser
    browser.close()


@pytest.fixture
def page(wide: Browser, folder: Path) -> Iterator[Browser]:
    """The report of one forecast; in the end its console has said nothing."""
    wide.prefer(prefers_color_scheme="light")
    wide.open((folder / "one.html").as_uri())
    yield wide
    assert wide.console() == []


def keep(browser: Browser, name: str) -> None:
    folder = os.environ.get("NEUSIGHT_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(folder) / f"report-{name}.png", whole=True)


#: The nth column of the table by op, as it is shown.
COLUMN = """
    const table = [...document.querySelectorAll("table.data")].find(
        t => t.tHead.rows[0].cells[0].textContent === "op");
    table.id = "ops";
    return [...table.tBodies[0].rows].filter(r => !r.hidden).map(
        r => r.cells[arguments[0]].dataset.v || r.cells[arguments[0]].textContent);
"""
SORTS = "return [...document.querySelectorAll('#ops th')].map(h => h.getAttribute('aria-sort'))"


def test_a_table_sorts_by_a_click_and_by_a_key(page: Browser) -> None:
    names, before = page.run(COLUMN, 0), [float(v) for v in page.run(COLUMN, 2)]
    assert before == sorted(before, reverse=True)

    page.click("#ops th button", nth=2)
    page.click("#ops th button", nth=2)

    assert page.run(SORTS) == ["none", "none", "ascending", "none"]
    assert [float(v) for v in page.run(COLUMN, 2)] != before

    page.run("document.querySelector('#ops th button').focus()")
    page.press("Enter")

    assert page.run(SORTS) == ["ascending", "none", "none", "none"]
    found = page.run(COLUMN, 0)
    assert found == sorted(found) and set(names) & set(found)


def test_a_table_is_searched_and_begins_short(page: Browser) -> None:
    shown = page.run(COLUMN, 0)
    page.click(".table:has(#ops) input")
    page.press(*"layer_norm")

    found = page.run(COLUMN, 0)
    assert found and all("layer_norm" in name for name in found)
    assert f"{len(found)} of" in page.run(
        "return document.querySelector('.table:has(#ops) output').textContent"
    )

    page.run("const i = document.querySelector('.table:has(#ops) input');"
             "i.value = ''; i.dispatchEvent(new Event('input'))")  # fmt: skip
    assert len(shown) == 15
    page.click(".table:has(#ops) .more")
    assert len(page.run(COLUMN, 0)) > 18


TREE = """
    return [...document.querySelectorAll("[role=treegrid] tbody tr")].map(
        r => [Number(r.getAttribute("aria-level")), r.cells[0].textContent.replace(/^[▾▸]/, ""),
              r.getAttribute("aria-expanded")]);
"""


def test_blocks_that_repeat_are_one_line_that_folds_out_to_each(page: Browser) -> None:
    rows = page.run(TREE)
    assert [1, "NetNet", "true"] in rows
    assert [2, "blocks.*\u00d7 4Block", "true"] in rows

    def line(text: str) -> int:
        return next(n for n, (_, name, _) in enumerate(page.run(TREE)) if name.startswith(text))

    page.click("[role=treegrid] tbody tr", nth=line("each of 4"))

    each = [name for level, name, _ in page.run(TREE) if level == 4 and name.endswith("Block")]
    assert sorted(each) == ["0Block", "1Block", "2Block", "3Block"]
    times = page.run("""
        const rows = [...document.querySelectorAll("[role=treegrid] tbody tr")];
        const count = text => Number(rows.find(
            r => r.cells[0].textContent.includes(text)).cells[5].textContent);
        const each = rows.filter(r => /^.?[0-3]Block$/.test(r.cells[0].textContent));
        return [count("blocks.*"), each.reduce((n, r) => n + Number(r.cells[5].textContent), 0)];
    """)
    assert times[0] == times[1] > 0
    page.click("[role=treegrid] tbody tr", nth=line("Net"))
    assert len(page.run(TREE)) < len(rows)


def test_the_tree_is_walked_and_folded_by_keys(page: Browser) -> None:
    focused = "return document.activeElement.cells?.[0].textContent.replace(/^[▾▸]/, '')"
    page.run("document.querySelector('[role=treegrid] tr[tabindex=\"0\"]').focus()")
    before = page.run(TREE)

    page.press("Left")
    assert page.run(TREE)[0] == [1, "NetNet", "false"]
    page.press("Right", "Right")
    assert page.run(TREE) == before
    assert page.run(focused) == "blocks.*\u00d7 4Block"
    page.press("Left", "Left")
    assert page.run(focused) == "NetNet"
    page.press("End")
    assert page.run(focused) == before[-1][1]
    assert (
        page.run("return document.querySelectorAll('[role=treegrid] tr[tabindex=\"0\"]').length")
        == 1
    )


def test_the_tree_is_searched_and_sorted(page: Browser) -> None:
    page.click(".tree input")
    page.press(*"linear")
    found = [name for _, name, _ in page.run(TREE)]
    assert "headLinear" in found and "(optimizer)" not in found

    page.run("const i = document.querySelector('.tree input');"
             "i.value = 'blocks.3.norm'; i.dispatchEvent(new Event('input'))")  # fmt: skip
    assert "3Block" in [name for _, name, _ in page.run(TREE)]
    page.run("const i = document.querySelector('.tree input');"
             "i.value = ''; i.dispatchEvent(new Event('input'))")  # fmt: skip
    page.click(".tree th button", nth=0)
    top = [name for level, name, _ in page.run(TREE) if level == 1]
    assert top == sorted(top)


PICKED = "return document.querySelector('.picked').textContent"


def test_the_timeline_is_driven_by_keys(page: Browser) -> None:
    page.run("document.querySelector('canvas').focus()")
    pixels = "return document.querySelector('canvas').toDataURL()"
    whole = page.run(pixels)

    page.press("+", "+")
    zoomed = page.run(pixels)
    page.press("-", "-")

    assert zoomed != whole and page.run(pixels) == whole
    page.press("Right")
    assert page.run(PICKED).startswith("the steady step\n")
    page.press("Down")
    assert "phases, on the GPU" in page.run(PICKED)
    first = page.run(PICKED)
    page.press("Right")
    assert page.run(PICKED) != first
    page.press("Enter")
    assert page.run(pixels) != whole
    page.press("Escape", "0")
    assert page.run(PICKED) == "" and page.run(pixels) == whole


def test_operators_are_shown_where_they_are_asked_for(page: Browser) -> None:
    height = "return document.querySelector('canvas').clientHeight"
    button = ".tools button[aria-pressed]"
    pressed = f"return document.querySelector('{button}').getAttribute('aria-pressed')"
    before = page.run(height)

    page.click(button)

    assert page.run(height) > before and page.run(pressed) == "true"
    keep(page, "operators")
    page.run("document.querySelector('canvas').focus()")
    page.press("Right", *["Down"] * 40)
    assert "operators, " in page.run(PICKED)
    page.click(button)
    assert page.run(height) == before and page.run(pressed) == "false"
    assert page.run(PICKED) == ""


def test_a_click_on_a_span_states_of_it(page: Browser) -> None:
    page.run("document.querySelector('canvas').focus()")
    page.click("canvas", y=-1 * page.run(
        "const c = document.querySelector('canvas'); return Math.floor(c.clientHeight / 2 - 46)"
    ))  # fmt: skip

    assert "steps" in page.run(PICKED)


def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(page: Browser) -> None:
    pixels = "return document.querySelector('canvas').toDataURL()"
    page.run("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    before, whole = page.run("return scrollY"), page.run(pixels)

    page.wheel("canvas", by=300)
    page.run("return new Promise(done => setTimeout(done, 300))")

    assert page.run("return scrollY") > before
    assert page.run(pixels) == whole
    page.wheel("canvas", by=-300, held="Control")
    assert page.run(pixels) != whole


def test_everything_is_reached_by_tab_and_has_a_name(page: Browser) -> None:
    page.run("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.run(
            "const e = document.activeElement, s = getComputedStyle(e);return [e.tagName, "
            "e.ariaLabel || e.textContent || e.ariaRoleDescription,s.outlineStyle !== 'none']"
        ))  # fmt: skip

    assert [tag for tag, _, _ in reached[:5]] == ["BUTTON"] * 5
    assert any(tag == "CANVAS" for tag, _, _ in reached)
    assert all(name for _, name, _ in reached)
    assert all(is_seen for _, _, is_seen in reached)
    nameless = page.run("""
        return [...document.querySelectorAll("button, input, canvas, [role=img]")].filter(
            e => !(e.getAttribute("aria-label") || e.textContent.trim())).length;
    """)
    assert nameless == 0


def test_light_and_dark_follow_the_system_and_the_button(wide: Browser, folder: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    pixels = "return document.querySelector('canvas').toDataURL()"
    wide.prefer(prefers_color_scheme="dark")
    wide.open((folder / "one.html").as_uri())
    dark, drawn = wide.run(background), wide.run(pixels)
    keep(wide, "dark")

    wide.click(".theme")

    assert wide.run(background) == "rgb(255, 255, 255)" != dark
    assert wide.run(pixels) != drawn
    wide.click(".theme")
    wide.click(".theme")
    assert wide.run(background) == dark
    wide.prefer(prefers_color_scheme="light")
    assert wide.run(background) == "rgb(255, 255, 255)"
    keep(wide, "light")


def test_two_stand_side_by_side(wide: Browser, folder: Path) -> None:
    wide.prefer(prefers_color_scheme="light")
    wide.open((folder / "two.html").as_uri())

    text = wide.text()
    for words in ("Side by side", "On one clock", "difference", "H100-SXM5-80GB", "L40S"):
        assert words in text
    assert wide.run("return document.querySelectorAll('canvas').length") == 3
    assert wide.console() == []
    keep(wide, "side-by-side")


def test_it_works_in_the_frame_of_a_notebook(wide: Browser, folder: Path) -> None:
    wide.open((folder / "framed.html").as_uri())
    wide.into("iframe")

    assert "Modules" in wide.text()
    assert wide.run("return document.querySelectorAll('[role=treegrid] tbody tr').length") > 3
    wide.click(".theme")
    wide.click("nav button", nth=1)
    assert wide.run("return document.activeElement.tagName") == "H3"
    assert wide.console() == []


def test_a_phone_scrolls_in_one_direction(folder: Path) -> None:
    phone = Browser(width=PHONE[0], height=PHONE[1], phone=True)
    try:
        for name in ("one", "two"):
            phone.open((folder / f"{name}.html").as_uri())
            assert phone.run("return document.documentElement.scrollWidth") == PHONE[0]
            assert phone.run("return innerWidth") == PHONE[0]
            assert phone.console() == []
            keep(phone, f"phone-{name}")
        touch = "return getComputedStyle(document.querySelector('canvas')).touchAction"
        assert phone.run(touch) == "pan-y"
    finally:
        phone.close()


def test_paper_is_white_and_without_buttons(page: Browser) -> None:
    page.prefer(prefers_color_scheme="dark", media="print")
    page.run("window.dispatchEvent(new Event('beforeprint'))")

    assert (
        page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    visible = (
        "return [...document.querySelectorAll('.tools, .theme')].filter(e => e.offsetHeight).length"
    )
    assert page.run(visible) == 0
    page.run("window.dispatchEvent(new Event('afterprint'))")

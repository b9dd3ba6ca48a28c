"""Colours of a page: read on light and on dark, and the same in the style and in the script."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from neusight.integrations.report.page.colours import DARK_KINDS, KINDS, kind_of, legend
from neusight.predictors.kernel import KernelClass

STYLE = (files("neusight.integrations.report.page") / "page.css").read_text(encoding="utf-8")
#: WCAG 2.2, 1.4.3: text of that size.
READABLE = 4.5


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))


@pytest.mark.parametrize("kinds", [KINDS, DARK_KINDS], ids=["light", "dark"])
def test_names_on_spans_are_readable(kinds: dict[str, tuple[str, str]]) -> None:
    assert {
        name: contrast(*pair) for name, pair in kinds.items() if contrast(*pair) < READABLE
    } == {}


def test_words_are_readable_on_light_and_on_dark() -> None:
    light, dark, chosen = map(variables, re.split(r"[ {]color-scheme: (?:light|dark);", STYLE)[1:4])

    assert dark == chosen  # by the system, and by the button
    for theme in (light, dark):
        for name in ("text", "muted", "good", "bad", "accent"):
            for ground in ("page", "panel"):
                assert contrast(theme[name], theme[ground]) >= READABLE, (name, ground)
        assert contrast(theme["text"], theme["share"]) >= READABLE


def test_the_style_and_the_script_have_the_same_colours() -> None:
    swatches = dict(re.findall(r"\.c-(\w+) \{ background: (#[0-9a-f]{6});", STYLE))

    assert swatches == {name: KINDS[name][0] for name in swatches}
    assert {kind_of(kernel_class) for kernel_class in KernelClass} <= swatches.keys()


def test_the_legend_has_only_what_is_shown() -> None:
    assert "matrix products" in legend(["gemm"]) and "copies" not in legend(["gemm"])
    assert legend(["module"]) == ""

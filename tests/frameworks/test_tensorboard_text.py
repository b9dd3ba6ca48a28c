"""What the text tab says, as TensorBoard turns it into HTML."""

from __future__ import annotations

import html
import warnings

import pytest
import torch

import neusight
from neusight.advice.advice import Advice
from neusight.integrations.frameworks.tensorboard_text import (
    advice_to_show,
    forecast_markdown,
)


def train(*, num_floats: int = 0) -> None:
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        kept = torch.empty(num_floats, device="cuda")
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        del kept


def forecast(*, num_floats: int = 0) -> neusight.Forecast:
    with neusight.forecast_on("H100") as opened:
        train(num_floats=num_floats)
    return opened


@pytest.fixture(scope="module")
def fitting() -> neusight.Forecast:
    return forecast()


def shown(markdown: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what TensorBoard brings along
        from tensorboard.plugin_util import markdown_to_safe_html

        return html.unescape(markdown_to_safe_html(markdown))


def test_the_verdict_is_the_heading_and_the_summary_stands_whole(
    fitting: neusight.Forecast,
) -> None:
    page = shown(forecast_markdown(fitting, []))

    assert page.startswith(f"<h3>{fitting.summary().splitlines()[0]}</h3>")
    assert f"<pre><code>{fitting.summary()}" in page
    assert "What to change" not in page


def test_advice_is_a_list_with_what_it_assumes(fitting: neusight.Forecast) -> None:
    advice = advice_to_show(fitting)

    page = shown(forecast_markdown(fitting, advice))

    assert advice
    assert page.count("<li>") == len(advice)
    assert [item for item in advice if f"</strong> {item.what}" not in page] == []
    assert [item for item in advice if f"<em>{item.assumes}</em>" not in page] == []


def test_words_of_the_program_are_no_markdown(fitting: neusight.Forecast) -> None:
    what = "a|b *c* _d_ `e` <script>f</script> [g](h) \\ #i"

    page = shown(forecast_markdown(fitting, [Advice("x", what, 1.0, 0.5, "nothing")]))

    assert f"</strong> {what}" in page


def test_what_does_not_fit_is_shown_with_what_would() -> None:
    large = forecast(num_floats=30 * 10**9)

    page = shown(forecast_markdown(large, []))

    assert "does not fit" in page.splitlines()[0]
    assert "<h4>what would make it fit" in page


def test_a_program_that_failed_or_did_nothing_gets_no_advice() -> None:
    with pytest.warns(match="no CUDA work"), neusight.forecast_on("H100") as nothing:
        pass

    assert advice_to_show(nothing) == []
    assert shown(forecast_markdown(nothing, [])).startswith("<h3>H100-SXM5-80GB: nothing")

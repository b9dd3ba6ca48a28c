"""The timeline of a page: its data in microseconds, and its words."""

from __future__ import annotations

import json

from neusight.integrations.report.page.colours import KIND_NUMBER
from neusight.integrations.report.page.lanes import Drawn, Lane, Lanes
from neusight.integrations.report.page.timeline_view import timeline_text, view_of_timeline

OPS = Lane("operators", [Drawn(0, 500, 0, "mm", "op")], is_optional=True)
GPU = Lane(
    "GPU",
    [
        Drawn(-500, 400, 0, "mm", "before", "2 x 2", "aten::mm"),
        Drawn(1500, 2500, 1, "mm", "gemm", "2 x 2", "Net"),
    ],
)
LANES = Lanes(-1500, 4000, (0, 4000), (GPU, OPS))


def view(lanes: Lanes, most: int) -> str:
    return view_of_timeline(lanes, "t", label="step", words="Words.", most=most)


def data_of(page: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(page.partition('id="t">')[2].partition("</script>")[0])
    return found


def test_the_script_is_given_microseconds_and_each_text_once() -> None:
    page = view(LANES, 9)

    before, gemm, op = (KIND_NUMBER[kind] for kind in ("before", "gemm", "op"))
    found = data_of(page)
    assert {name: found[name] for name in ("start_us", "end_us", "boundaries")} == {
        "start_us": -1.5, "end_us": 4.0, "boundaries": [0, 4.0],
    }  # fmt: skip
    assert found["texts"] == ["mm", "2 x 2", "aten::mm", "Net", ""]
    assert found["lanes"] == [
        {
            "name": "GPU",
            "num_rows": 2,
            "spans": [[-0.5, 0.4, 0, 0, before, 1, 2], [1.5, 2.5, 1, 0, gemm, 1, 3]],
        },
        {"name": "operators", "num_rows": 1, "spans": [[0, 0.5, 0, 0, op, 4, 4]], "optional": True},
    ]
    assert '<p class="muted">Words.</p>' in page


def test_that_short_spans_are_joined_is_stated() -> None:
    many = Lane("GPU", [Drawn(400 * at, 400, 0, "k", "gemm") for at in range(1200)])

    page = view(Lanes(0, 480_000, (), (many, OPS)), 300)

    assert "shorter than 0.5 µs are drawn as one with their neighbours: 240 for 1,200." in page
    assert 'class="swatch c-gemm"' in page  # what is joined is coloured as kernels are


def test_the_words_say_how_far_the_host_runs_ahead() -> None:
    ahead, level = (timeline_text(LANES._replace(start_ns=start)) for start in (-1500, 0))

    assert "to 4.0 µs. The host began it 1.5 µs earlier" in ahead
    assert level == "The step is from 0 to 4.0 µs."

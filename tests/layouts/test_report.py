"""Layouts that were found, as text and as JSON; their prices are tables of tests/golden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neusight.integrations.layouts.layout import layouts_of
from neusight.integrations.layouts.pricing import LayoutPricer
from neusight.integrations.layouts.report import LayoutReport, script_text
from neusight.integrations.layouts.search import Found, SearchRequest, find_layouts
from neusight.integrations.layouts.whole_training import WholeTraining
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from places import require_golden
from priced_layouts import GEMM, H100, RECORD, SHAPE, STEP, Tenths, recorded, tenths

L4 = find_gpu("L4")
DOLLARS = {H100.name: 3.0, L4.name: 0.5}


def found(*gpus: GPU, world_sizes: tuple[int, ...] = (8, 16)) -> Found:
    request = SearchRequest("m.json", SHAPE, STEP, gpus, world_sizes, Tenths(), 8, 2.0, 1)
    return find_layouts(request, recorded)


def report(layouts: Found, **options: Any) -> LayoutReport:
    given = {"prices": {}, "gpus": (H100.name,), **options}
    return LayoutReport(layouts, SHAPE, STEP, **given)


def test_the_best_layouts_are_shown_with_what_they_cost() -> None:
    both, one = found(H100, L4), found(H100, world_sizes=(8,))
    run_whole = replace(one, prices=(one.prices[1].corrected(1.25), *one.prices), problems=())
    offloaded = find_layouts(
        SearchRequest("m.json", replace(SHAPE, block_parameters=10**10), STEP, (H100,), (16,),
                      Tenths(), 8, 2.0, 1), recorded
    )  # fmt: skip

    require_golden(
        "layout_reports.txt",
        [
            *report(
                both, prices=DOLLARS, gpus=(H100.name, L4.name), script="train.py",
                training=WholeTraining(1e12, 10_000.0),
            ).text().splitlines(),
            *report(run_whole, training=WholeTraining(1e12)).text().splitlines(),
            *report(offloaded).text().splitlines(),
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layouts", "stated"),
    [
        (Found((), 9, 0, 0.0, ("a block: why",)), "no block could be recorded"),
        (Found((), 9, 9, 3 * 2**30), "no layout fits: the smallest needs 3.00 GiB on a rank; add"),
        (Found((), 9, 9, 0.0), "no layout fits; add ranks, or say fewer tokens"),
    ],
)
def test_where_no_layout_is_left_the_reason_is_stated(layouts: Found, stated: str) -> None:
    _, counted, _, why, *problems = report(layouts).text().splitlines()

    assert counted == f"9 layouts, {layouts.num_too_large} of which do not fit"
    assert why.startswith(stated)
    assert problems == [f"  {text}" for text in layouts.problems]


def test_a_layout_whose_block_fails_is_not_said_to_be_too_large() -> None:
    layouts = found(H100, world_sizes=(8,))
    every = layouts_of(SHAPE, STEP, world_size=8, gpus_per_node=8)

    failed = [layout for layout in every if layout.tensor == 2]
    assert len(layouts.problems) == 2
    assert layouts.num_layouts == len(every)
    assert layouts.num_too_large == len(every) - len(failed) - len(layouts.prices)


def test_the_document_has_every_layout() -> None:
    layouts = found(H100, world_sizes=(8,))

    document = report(layouts, prices=DOLLARS, training=WholeTraining(1e9)).to_json()

    assert len(document["layouts"]) == len(layouts.prices)
    first, [best] = document["layouts"][0], document["frontier"]
    assert first["layout"] == best["layout"]
    assert first["$_a_billion_tokens"] == 3.0 * best["gpu_hours_per_billion_tokens"]
    assert first["training"]["gpu_hours"] == best["gpu_hours_per_billion_tokens"]
    assert report(layouts).to_json()["layouts"][0]["training"] is None


def test_a_script_is_the_template_filled_in() -> None:
    [price] = found(H100, world_sizes=(16,)).prices[:1]

    text = script_text("m.py:build", price, STEP, gpus_per_node=8)

    assert text.startswith('"""Trains m.py:build as `neusight plan` laid it out for 16 H100')
    assert "torchrun --nnodes 2 --nproc-per-node 8 THIS_FILE" in text
    assert '/m.py:build"\n' in text.replace("'", '"')
    assert '"shard": 16, ' in text and '"sequence": 4096,' in text


MIXTURE = replace(SHAPE, num_experts=8, expert_parameters=80_000_000)
WHOLE = replace(SHAPE, has_stages=False)
PRODUCT = Kernel.collective("all_reduce", 2**20, 4, dtype="bfloat16")
#: With what comes before and after the blocks, and what the ranks that share one exchange.
EDGED = replace(
    RECORD,
    kernels=(
        *RECORD.kernels, ("first", False, GEMM), ("last", False, GEMM), ("last", True, GEMM),
        ("block", False, PRODUCT), ("block", True, PRODUCT), ("again", True, PRODUCT),
    ),
)  # fmt: skip


def test_layouts_cost_what_the_golden_table_has() -> None:
    """Every twentieth of three models, kept in memory and offloaded: bytes, and µs by part."""
    shapes = {"dense": SHAPE, "mixture": MIXTURE, "whole": WHOLE}
    lines = []
    for title, shape in shapes.items():
        pricer = LayoutPricer(shape, STEP, H100, tenths, gpus_per_node=8, storage_gbps=2.0)
        for layout in layouts_of(shape, STEP, world_size=32, gpus_per_node=8)[::20]:
            offloads = (False, True) if layout.pipeline == 1 else (False,)
            for one in (replace(layout, offload=offload) for offload in offloads):
                price = pricer.price(one, EDGED)
                parts = " ".join(f"{us:.4g}" for us in price.parts.values())
                lines.append(f"{title}, {one.title}: {price.memory_bytes:.5g} {parts}")

    require_golden("layout_prices.txt", lines)

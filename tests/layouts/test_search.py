"""`neusight plan --model`: from a model to a ranking and a script that runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from model_of_blocks import MODEL
from neusight.integrations.layouts.block import BlockOf, recorded_block
from neusight.integrations.layouts.layout import Layout, ModelShape, StepLoad
from neusight.integrations.layouts.pricing import LayoutPrice
from neusight.integrations.layouts.report import script_text
from neusight.integrations.layouts.search import SearchRequest, with_runs
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import KernelClass
from neusight.predictors.registry import find_predictor
from warm_python import run_python

WORDS = ("-m", "neusight", "plan", "--gpu", "H100", "--quiet", "--sequence", "128")


@pytest.mark.slow
def test_a_model_of_ones_own_is_laid_out_and_its_script_runs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)

    done = run_python(
        *WORDS, "--model", "model.py:build", "--world-size", "2,4", "--tokens", "4k",
        "--script", "train.py", "--json", "found.json", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Net: 0.00 billion parameters, 4 blocks" in done.stdout
    assert "frontier of time and cost" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    times = [one["step_us"] for one in found["layouts"] if one["corrected_us"] is None]
    assert times == sorted(times)
    assert len(found["layouts"]) == len(times) + 3  # run whole
    assert found["num_layouts"] == len(found["layouts"]) + found["num_too_large"]
    best = found["layouts"][0]["layout"]
    ranks = best["shard"] * best["replicate"] * best["tensor"]
    whole = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--world-size", str(ranks), "--quiet",
        "train.py", cwd=tmp_path,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert ": fits, " in whole.stdout


@pytest.mark.slow
def test_ranks_that_split_a_decoders_layers_share_the_sequence_between_them(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "vocab_size": 1024,
    }
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **shape, **heads}))

    alone, shared = (
        recorded_block(str(config), BlockOf("H100", 1, tensor), sequence=128, gpus_per_node=8)
        for tensor in (1, 4)
    )

    collectives = {
        kernel.name
        for part, _, kernel in shared.kernels
        if part == "block" and kernel.kernel_class is KernelClass.COLLECTIVE
    }
    assert {"all_gather", "reduce_scatter"} <= collectives
    assert shared.input_bytes == alone.input_bytes / 4
    assert shared.kept_bytes < alone.kept_bytes / 3


PRICE = LayoutPrice(Layout(), "H100", *([1.0] * 13))
SHAPE = ModelShape("Model", 8, 16, 16, 1000, 1000, has_stages=True)
GPU = find_gpu("H100")


REQUEST = SearchRequest(
    "", SHAPE, StepLoad(8192, 128), (GPU,), (8,), find_predictor(None), 8, 2.0, 1
)


def in_turn(
    work: Callable[[LayoutPrice], object], items: Sequence[LayoutPrice], *, at_once: int
) -> Iterator[tuple[int, object]]:
    yield from enumerate(map(work, items))


def short(price: LayoutPrice, layout: Layout) -> LayoutPrice:
    return dataclasses.replace(price, layout=layout, step_us=10.0)


def test_the_best_are_as_long_as_their_scripts_take_for_a_few_micro_batches() -> None:
    layouts = [Layout(shard=8, micro_batch=n, num_micro_batches=64 // n) for n in (1, 2, 4, 8)]
    prices = [
        dataclasses.replace(PRICE, layout=layout, step_us=100.0 + n)
        for n, layout in enumerate(layouts)
    ]
    problems: dict[str, None] = {}

    def run(price: LayoutPrice) -> float | str:
        assert price.layout.num_micro_batches == 2
        return {1: 12.0, 2: 11.0}.get(price.layout.micro_batch, "failed: out of luck")

    found = with_runs(REQUEST, in_turn, run, short, prices, problems, lambda text: None)

    assert [round(price.step_us, 3) for price in found] == [111.1, 120.0, 102.0, 103.0]
    assert [price.corrected_us is None for price in found] == [False, False, True, True]
    assert list(problems) == [f"{layouts[2].title} was not run whole: failed: out of luck"]


def test_a_pipeline_takes_longer_by_what_a_few_micro_batches_take_longer() -> None:
    layout = Layout(pipeline=2, stages_a_rank=4, num_micro_batches=32)
    price = dataclasses.replace(PRICE, layout=layout, step_us=100.0)
    lines: list[str] = []

    [found] = with_runs(REQUEST, in_turn, lambda few: 12.0, short, [price], {}, lines.append)

    assert found.step_us == pytest.approx(102.0)
    assert lines == [f"ran {dataclasses.replace(layout, num_micro_batches=2).title} whole: +20.0%"]


SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1024,
         "num_attention_heads": 8, "num_key_value_heads": 8}  # fmt: skip
EXPERTS = {"head_dim": 32, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        Layout(shard=2, context=2, tensor=2),
        Layout(replicate=2, shard=2, expert=2),
        Layout(pipeline=2, stages_a_rank=2, num_micro_batches=4, zero_bubble=True),
        Layout(shard=2, offload=True),
    ],
    ids=lambda layout: layout.title,
)
def test_the_script_of_each_kind_of_layout_runs(layout: Layout, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    kind = {"model_type": "qwen3_moe", **EXPERTS} if layout.expert > 1 else {"model_type": "llama"}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**kind, **SMALL}))
    price = dataclasses.replace(PRICE, layout=layout)
    text = script_text(str(config), price, StepLoad(8192, 128), gpus_per_node=8)
    (tmp_path / "train.py").write_text(text)

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--world-size", str(layout.world_size),
        "--rank", "all-distinct", "--quiet", "--steps", "1", "train.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert ": fits, " in done.stdout

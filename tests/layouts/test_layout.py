"""Layouts: which there are, and what cannot be shared evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.layouts.layout import Layout, ModelShape, StepLoad, layouts_of
from neusight.predictors.errors import OptionError

LLAMA = ModelShape("Llama", 32, 32, 8, 218_000_000, 1_050_000_000, has_stages=True)
STEP = StepLoad(2**20, 4096)


def test_every_layout_uses_all_ranks_and_takes_all_sequences() -> None:
    found = layouts_of(LLAMA, STEP, world_size=64, gpus_per_node=8)

    assert {layout.world_size for layout in found} == {64}
    for layout in found:
        copies = layout.shard * layout.replicate
        assert copies * layout.micro_batch * layout.num_micro_batches == STEP.num_sequences
        assert LLAMA.num_blocks % (layout.pipeline * layout.stages_a_rank) == 0
        assert layout.num_micro_batches >= layout.least_micro_batches
    assert len(set(found)) == len(found)
    assert max(layout.tensor for layout in found) == 8
    alone = [layout for layout in found if layout.tensor == layout.pipeline == layout.context == 1]
    assert {layout.shard for layout in alone} == {1, 8, 64}


def test_heads_that_do_not_divide_are_not_split() -> None:
    odd = replace(LLAMA, heads=30, kv_heads=30)

    assert {one.tensor for one in layouts_of(odd, STEP, world_size=8, gpus_per_node=8)} == {1, 2}


def test_a_model_without_stages_has_no_pipeline() -> None:
    whole = replace(LLAMA, has_stages=False)

    assert {one.pipeline for one in layouts_of(whole, STEP, world_size=8, gpus_per_node=8)} == {1}


def test_ranks_share_a_sequence_as_far_as_each_has_2048_tokens_of_it() -> None:
    found = layouts_of(LLAMA, StepLoad(2**20, 8192), world_size=64, gpus_per_node=8)

    assert {one.context for one in found} == {1, 2, 4}
    assert all(one.micro_batch == 1 for one in found if one.context > 1)


def test_experts_lie_on_the_ranks_of_a_copy_and_no_layer_of_theirs_is_split() -> None:
    mixture = replace(LLAMA, num_experts=32, expert_parameters=200_000_000)

    found = layouts_of(mixture, STEP, world_size=64, gpus_per_node=8)

    assert {one.tensor for one in found} == {1}
    assert {one.expert for one in found if one.shard == 64} == {1, 8, 32}
    assert all(one.shard % one.expert == 0 for one in found)


def test_float8_is_tried_beside_bf16() -> None:
    plain, both = (
        layouts_of(LLAMA, STEP, world_size=8, gpus_per_node=8, float8=float8)
        for float8 in (False, True)
    )

    assert both == [*plain, *(replace(one, float8=True) for one in plain)]


def test_ranks_that_cannot_share_a_step_are_an_error() -> None:
    with pytest.raises(OptionError, match="7 ranks cannot share 256 sequences"):
        layouts_of(LLAMA, STEP, world_size=7, gpus_per_node=8)


@pytest.mark.parametrize(("tokens", "reported"), [(100, "at least one"), (5000, "no whole number")])
def test_a_step_is_whole_sequences(tokens: int, reported: str) -> None:
    with pytest.raises(OptionError, match=reported):
        StepLoad(tokens, 4096)


def test_a_title_says_what_was_chosen() -> None:
    layout = Layout(pipeline=2, stages_a_rank=2, shard=4, micro_batch=1, num_micro_batches=8)

    assert replace(layout, zero_bubble=True, offload=True).title.endswith("zero bubble, offload")
    assert layout.title == "pipeline 2, shard 4, 2 stages a rank, 8 x 1 sequences"

"""What a layout costs: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.layouts.layout import Layout
from neusight.integrations.layouts.pricing import LayoutPricer, least_bytes, needed_bytes
from neusight.predictors.kernel import CollectiveSize, Kernel
from neusight.predictors.predictor import Estimate
from priced_layouts import GEMM, H100, PRICER, RECORD, SHAPE, STEP, tenths

BYTES_A_US = H100.bandwidth_gbps * H100.bandwidth_utilization * 1e3


def test_one_rank_computes_all_blocks_for_all_micro_batches() -> None:
    price = PRICER.price(Layout(num_micro_batches=64), RECORD)

    gathered, reduced = 2 * (4 + 10), 6 + 12  # bytes of a parameter that FSDP2 copies
    moved_us = (gathered + reduced) * SHAPE.num_parameters / BYTES_A_US
    assert price.compute_us == pytest.approx(64 * (8 * 300.0 + moved_us))
    assert price.exposed_us == price.bubble_us == price.straggler_us == 0.0
    possible = H100.peak_flops("bf16", matrix=True) * price.step_us * 1e-6
    assert price.mfu == pytest.approx(64 * 8 * 3 * GEMM.flops / possible)
    assert price.watts <= H100.tdp_w


def test_ranks_wait_for_loaders_that_deliver_fewer_tokens_than_they_take() -> None:
    """Two hosts, of which each loads half of the step's tokens, 1,000 a second."""
    layout = Layout(shard=16, num_micro_batches=4)
    slow = LayoutPricer(
        SHAPE, STEP, H100, tenths, gpus_per_node=8, storage_gbps=2.0, loaded_tokens_per_s=1000.0
    )

    free, bound = (pricer.price(layout, RECORD) for pricer in (PRICER, slow))

    assert free.loading_us == 0.0
    assert bound.step_us == pytest.approx(STEP.tokens / 2 / 1000.0 * 1e6)
    assert bound.loading_us == pytest.approx(bound.step_us - free.step_us)
    assert bound.parts["waiting for data"] == bound.loading_us


def test_a_run_that_is_slower_is_hidden_while_ranks_wait_for_data() -> None:
    slow = LayoutPricer(
        SHAPE, STEP, H100, tenths, gpus_per_node=8, storage_gbps=2.0, loaded_tokens_per_s=1000.0
    )
    found = slow.price(Layout(shard=16, num_micro_batches=4), RECORD).corrected(1.5)

    assert found.correction == pytest.approx(0.5)
    assert found.step_us == pytest.approx(sum(found.parts.values()))
    assert found.step_us == pytest.approx(STEP.tokens / 2 / 1000.0 * 1e6)


def test_checkpoints_compute_the_forward_again_and_keep_less() -> None:
    plain, again = (
        PRICER.price(Layout(num_micro_batches=64, checkpoint=checkpoint), RECORD)
        for checkpoint in (False, True)
    )

    assert again.recomputed_us == pytest.approx(64 * 8 * 100.0)
    assert again.step_us - plain.step_us == pytest.approx(again.recomputed_us)
    assert again.memory_bytes < plain.memory_bytes - 5 * 2**30


def test_a_pipeline_is_idle_for_as_many_micro_batches_as_stages_less_one() -> None:
    """Of the others' stages, which have no edge; a micro-batch is sent 3 times, or 7, each way."""
    layout = Layout(pipeline=4, num_micro_batches=64)
    record = replace(RECORD, kernels=(*RECORD.kernels, ("last", False, GEMM)))

    one, two = PRICER.price(layout, record), PRICER.price(replace(layout, stages_a_rank=2), record)

    stage_us = one.compute_us / 64 - 100.0
    assert one.bubble_us == pytest.approx(3 * stage_us + 6 * 1.0)
    assert two.bubble_us == pytest.approx(3 * stage_us / 2 + 14 * 1.0)


def test_a_pipeline_waits_for_the_reduction_of_its_gradients() -> None:
    """A gather of the edge and a block, and four reductions; of several stages two edges."""
    layout = Layout(pipeline=2, shard=4, reshard=False, num_micro_batches=64)

    prices = [PRICER.price(replace(layout, stages_a_rank=count), RECORD) for count in (1, 2)]
    alone = PRICER.price(replace(layout, pipeline=1, shard=8), RECORD)

    assert [price.exposed_us for price in prices] == [1.0 + 1.0 + 4 + 1, 1.0 + 1.0 + 4 + 2]
    assert alone.exposed_us == 1.0 + 1.0 + 1.0 + 1.0


def test_a_fourth_stage_of_a_rank_is_gathered_again() -> None:
    layout = Layout(pipeline=2, stages_a_rank=2, reshard=False, num_micro_batches=8)

    two, four = (
        PRICER.price(replace(layout, stages_a_rank=count), RECORD).compute_us for count in (2, 4)
    )

    own = SHAPE.num_parameters // 2
    assert four - two == pytest.approx(8 / 2 / 2 * (4 + 10) * own / BYTES_A_US)


def test_a_pipeline_without_bubbles_waits_for_half_of_the_gradients_of_activations() -> None:
    layout = Layout(pipeline=4, stages_a_rank=2, num_micro_batches=64, zero_bubble=True)

    price = PRICER.price(layout, RECORD)

    assert price.bubble_us == pytest.approx(3 * (2 * (200.0 - 100.0) / 2 + 2 * 1.0))


def test_gradients_are_summed_up_where_they_are_not_reduced_yet() -> None:
    kept = PRICER.price(Layout(num_micro_batches=64, reshard=False), RECORD)

    moved_us = (14 + 18 + 63 * 18) * SHAPE.num_parameters / BYTES_A_US
    assert kept.compute_us == pytest.approx(64 * 8 * 300.0 + moved_us)


def test_ranks_that_hold_different_experts_gather_their_own() -> None:
    mixture = replace(SHAPE, num_experts=8, expert_parameters=80_000_000)
    asked: list[Kernel] = []

    def noting(kernels: list[Kernel]) -> list[Estimate]:
        asked.extend(kernels)
        return tenths(kernels)

    pricer = LayoutPricer(mixture, STEP, H100, noting, gpus_per_node=8, storage_gbps=2.0)
    price = pricer.price(Layout(shard=16, expert=8, num_micro_batches=4), RECORD)

    sizes = [one.size for one in asked if one.name == "all_gather"]
    gathers = {
        (size.world_size, size.num_bytes) for size in sizes if isinstance(size, CollectiveSize)
    }
    assert {(16, 2 * 20_000_000), (2, 2 * 10_000_000)} <= gathers
    assert price.memory_bytes < needed_bytes(Layout(shard=16), mixture, RECORD)


def test_what_is_offloaded_costs_time_and_no_memory() -> None:
    here, there = (
        PRICER.price(Layout(shard=8, num_micro_batches=8, offload=offload), RECORD)
        for offload in (False, True)
    )

    assert here.memory_bytes - there.memory_bytes > 2 * SHAPE.num_parameters
    assert there.optimizer_us == pytest.approx(28 * SHAPE.num_parameters / 300e3)


def test_a_step_that_was_run_whole_is_as_long_as_that() -> None:
    price = PRICER.price(Layout(num_micro_batches=64), RECORD)

    ran = price.corrected(1.1)

    assert ran.step_us == pytest.approx(1.1 * price.step_us)
    assert ran.correction == pytest.approx(0.1)
    assert sum(ran.parts.values()) == pytest.approx(ran.step_us)
    assert ran.tokens_per_s * ran.step_us == pytest.approx(price.tokens_per_s * price.step_us)


def test_sharding_shares_what_is_kept() -> None:
    alone, shared = (least_bytes(Layout(shard=ranks), SHAPE) for ranks in (1, 8))

    assert shared < alone / 2
    assert needed_bytes(Layout(shard=8), SHAPE, RECORD) > shared + 9 * 2**30


def test_ranks_on_several_hosts_wait_for_the_slowest() -> None:
    price = PRICER.price(Layout(shard=64, num_micro_batches=1), RECORD)

    assert price.straggler_us > 0.0
    assert sum(price.parts.values()) == pytest.approx(price.step_us)

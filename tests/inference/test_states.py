"""Layers with a state: what a server launches for them, what it keeps, what both cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neusight.inference.states import RecurrentLayer
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.registry import find_predictor
from neusight.serving.capacity import capacity_of
from neusight.serving.launches import SCAN, LaunchedKernel, RecordedPoint, with_scans
from neusight.serving.prices import Engine, StepPrices, StepProgram, pipeline_programs
from neusight.serving.scheduler import Chunk, StepBatch
from neusight.timeline.host import PLAIN

H100 = find_gpu("H100")
#: A layer of Mamba 2 with 2.7 billion parameters, and one of Mamba with 2.8 billion.
CHUNKED = RecurrentLayer(80, 64, 128, 5376, 4, "bfloat16", "bfloat16")
SCANNED = RecurrentLayer(5120, 1, 16, 5120, 4, "bfloat16", "bfloat16")
HIDDEN, INNER = 2560, 5120


def launched(tokens: int) -> list[LaunchedKernel]:
    """A layer as reference code runs it, with a kernel for every token."""
    loop = [Kernel.elementwise("mul", INNER, dtype="float32")] * tokens
    kernels = [
        ("m.0.mixer.in_proj", Kernel.gemm(tokens, 2 * INNER, HIDDEN, dtype="bfloat16")),
        ("m.0.mixer.act", Kernel.elementwise("silu", tokens * INNER, dtype="bfloat16")),
        *(("m.0.mixer", kernel) for kernel in loop),
        ("m.0.mixer.norm", Kernel.elementwise("rsqrt", tokens, dtype="float32")),
        ("m.0.mixer.out_proj", Kernel.gemm(tokens, HIDDEN, INNER, dtype="bfloat16")),
        ("m.0", Kernel.elementwise("add", tokens * HIDDEN, dtype="bfloat16")),
        ("m.head", Kernel.gemm(1, 50288, HIDDEN, dtype="bfloat16")),
    ]
    return [LaunchedKernel(kernel, module) for module, kernel in kernels]


def program(layer: RecurrentLayer, **changed: object) -> StepProgram:
    layers = {"m.0.mixer": layer}
    points = []
    for sequences, tokens, past in [(1, 8, 8), (1, 16, 8), (1, 8, 16), (1, 16, 16), (2, 8, 8)]:
        launches = with_scans(launched(sequences * tokens), layers)
        points.append(RecordedPoint(sequences, tokens, past, launches))
    given: dict[str, Any] = {
        "engine": Engine("compiled"),
        "parameter_bytes": 10**8,
        "recurrences": layers,
    }
    return pipeline_programs(points, **{**given, **changed})[0]


def prices(layer: RecurrentLayer) -> StepPrices:
    still = replace(PLAIN, kernel_gap_us=0.0)
    return StepPrices(program(layer), H100, find_predictor(), still, Engine("compiled"))


def test_projections_and_norms_stay_and_one_kernel_stands_for_the_rest() -> None:
    found = with_scans(launched(32), {"m.0.mixer": SCANNED})

    assert [(item.module, item.kernel.name) for item in found] == [
        ("m.0.mixer.in_proj", "gemm"),
        ("m.0.mixer", SCAN),
        ("m.0.mixer.norm", "rsqrt"),
        ("m.0.mixer.out_proj", "gemm"),
        ("m.0", "add"),
        ("m.head", "gemm"),
    ]


def test_a_state_is_that_of_its_heads_and_of_the_convolution() -> None:
    assert CHUNKED.state_bytes == (80 * 64 * 128 + 5376 * 4) * 2
    assert program(CHUNKED).state_bytes == CHUNKED.state_bytes
    assert program(CHUNKED, ranks=2).state_bytes == CHUNKED.state_bytes / 2
    with pytest.raises(OptionError, match="80 heads of a recurrent layer"):
        program(CHUNKED, ranks=3)


@pytest.mark.parametrize("layer", [CHUNKED, SCANNED], ids=["in chunks", "by channels"])
def test_states_of_many_sequences_are_read_and_written_as_fast_as_memory_is(
    layer: RecurrentLayer,
) -> None:
    found = find_predictor().predict(list(layer.of_sequences(512)), H100)

    moved_us = 512 * 2 * layer.state_bytes / (H100.bandwidth_gbps * 1e3)
    assert moved_us < sum(estimate.latency_us for estimate in found) < 1.4 * moved_us


@pytest.mark.parametrize("layer", [CHUNKED, SCANNED], ids=["in chunks", "by channels"])
def test_a_prompt_is_scanned_in_time_that_follows_its_tokens(layer: RecurrentLayer) -> None:
    own = prices(layer)
    costs = [own(StepBatch(0, 0, (Chunk(n, n),), 1)).gpu_us for n in (128, 1024, 2048, 8192)]

    assert costs == sorted(costs)
    assert 3 < costs[3] / costs[2] < 5


def test_the_context_changes_no_price() -> None:
    own = prices(CHUNKED)

    assert own(StepBatch(8, 8 * 100, (), 8)) == own(StepBatch(8, 8 * 100_000, (), 8))


def test_blocks_hold_a_state_beside_the_tokens_or_alone() -> None:
    alone = program(CHUNKED)
    both = replace(alone, kv_bytes_per_token=4096)
    given = {"utilization": 0.9, "max_tokens": 2048, "max_seqs": 8, "block_size": 16}

    of_states, of_both = (
        capacity_of(one, H100, **given)  # type: ignore[arg-type]
        for one in (alone, both)
    )

    assert of_states.num_blocks == of_states.kv_bytes // CHUNKED.state_bytes
    assert of_states.state_blocks == 0
    assert of_both.num_blocks == of_both.kv_bytes // (16 * 4096)
    assert of_both.state_blocks == -(-CHUNKED.state_bytes // (16 * 4096))


def test_a_convolution_alone_has_no_scan() -> None:
    layer = RecurrentLayer(2048, 1, 0, 2048, 3, "bfloat16", "bfloat16")

    assert [kernel.name for kernel in layer.of_sequences(4)] == ["conv_update"]
    assert [kernel.kernel_class for kernel in layer.of_tokens(64)] == [KernelClass.ELEMENTWISE]

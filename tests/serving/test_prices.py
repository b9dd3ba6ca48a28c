"""Steps cost what their kernels cost, for what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import AttentionSize, CollectiveSize, Kernel
from neusight.predictors.physics.communication.collective import direct_us
from neusight.predictors.predictor import Estimate
from neusight.serving.capacity import capacity_of
from neusight.serving.launches import LaunchedKernel, RecordedPoint
from neusight.serving.prices import (
    AttentionLayer,
    Engine,
    StepPrices,
    StepProgram,
    _cached_heads,
    _nodes,
    pipeline_programs,
)
from neusight.serving.quantization import Adapters
from neusight.serving.scheduler import BOUNDS, Chunk, StepBatch
from neusight.timeline.host import PLAIN

BATCHES = [(1, 64, 256), (1, 128, 256), (1, 64, 512), (1, 128, 512), (2, 64, 256)]
H100 = find_gpu("H100")
#: No gaps between kernels.
HOST = replace(PLAIN, name="still", kernel_gap_us=0.0)


class Simple:
    """A nanosecond for a million bytes or FLOPs; remembers how many kernels it was asked for."""

    name = "simple"

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        self.asked += len(kernels)
        return [self._of(kernel) for kernel in kernels]

    def _of(self, kernel: Kernel) -> Estimate:
        us = (kernel.num_bytes + kernel.flops) * 1e-9
        bound = "communication" if isinstance(kernel.size, CollectiveSize) else "memory"
        return Estimate(us, us, us, bound, "physics", self.name)  # type: ignore[arg-type]


def points() -> list[RecordedPoint]:
    found = []
    for sequences, tokens, past in BATCHES:
        rows = sequences * tokens
        attention = Kernel.attention(
            sequences, 8, 2, tokens, tokens + past, 64, causal=True, dtype="bfloat16"
        )
        kernels = [
            Kernel.gemm(rows, 1024, 512, dtype="bfloat16"),
            attention,
            Kernel.gemm(rows, 512, 512, dtype="bfloat16"),
            Kernel.gemm(sequences, 32000, 512, dtype="bfloat16"),
        ]
        launches = tuple(
            LaunchedKernel(kernel, f"m.{name}.x")
            for kernel, name in zip(kernels, "qaoh", strict=True)
        )
        found.append(RecordedPoint(sequences, tokens, past, launches))
    return found


def program(**changed: object) -> StepProgram:
    given: dict[str, Any] = {"engine": Engine("compiled"), "parameter_bytes": 10**8, **changed}
    return pipeline_programs(points(), **given)[0]


def prices(engine: Engine = Engine("compiled"), **changed: object) -> StepPrices:  # noqa: B008
    found = program(engine=engine, **changed)
    return StepPrices(found, H100, Simple(), HOST, engine)


def test_a_cache_keeps_keys_and_values_of_each_layer() -> None:
    assert program().kv_bytes_per_token == 2 * 2 * 64 * 2
    assert program(kv_dtype="float8_e4m3fn").kv_bytes_per_token == 2 * 2 * 64
    assert program(ranks=2).kv_bytes_per_token == 2 * 64 * 2


def test_a_step_costs_the_sum_of_its_kernels() -> None:
    cost = prices(Engine("eager"))(StepBatch(4, 4 * 512, (), 4))

    kernels = [
        Kernel.gemm(4, 1024, 512, dtype="bfloat16"),
        Kernel.attention(4, 8, 2, 1, 512, 64, causal=False, dtype="bfloat16"),
        Kernel.gemm(4, 512, 512, dtype="bfloat16"),
        Kernel.gemm(4, 32000, 512, dtype="bfloat16"),
    ]
    assert cost.gpu_us == pytest.approx(
        sum(estimate.latency_us for estimate in Simple().predict(kernels, H100)), rel=1e-6
    )


@pytest.mark.parametrize("sequences", [1, 4])
def test_a_compiled_model_costs_its_call_and_its_graph_where_the_host_is_slow(
    sequences: int,
) -> None:
    engine = Engine("compiled")
    slow = replace(
        HOST, compiled_call_us=1e6, graph_tree_us=2e5, graph_kernel_us=1e3, graph_launch_us=5e4
    )
    found = program(engine=engine)
    price = StepPrices(found, H100, Simple(), slow, engine)

    cost = price(StepBatch(sequences, sequences * 512, (), sequences))

    model_us = 1e6 + 2e5 + 1e3 * found.num_launches + 5e4
    assert cost.latency_us == pytest.approx(model_us + 100.0 + 2.0 * sequences)


def test_heads_of_the_cache_are_those_that_are_written_before_each_attention() -> None:
    """Two of eight that are repeated, joined first of all; then all that attention reads."""
    joined = Kernel.elementwise("cat", 3 * 2 * 300 * 64, dtype="bfloat16")
    attention = Kernel.attention(3, 8, 8, 1, 300, 64, causal=False, dtype="bfloat16")
    launches = [LaunchedKernel(kernel) for kernel in (joined, attention, attention)]

    assert _cached_heads(launches) == [2, 8]
    assert _cached_heads([*launches, launches[0], launches[1]]) == [2, 8, 2]


def test_longer_contexts_and_more_tokens_cost_more() -> None:
    price = prices()
    costs = [
        price(StepBatch(8, 8 * context, (), 8)).gpu_us for context in (100, 101, 500, 5000, 50000)
    ]
    chunks = [price(StepBatch(0, 0, (Chunk(n, n + 700),), 1)).gpu_us for n in (1, 64, 500, 2000)]

    assert costs == sorted(costs)
    assert chunks == sorted(chunks)


def test_a_mixed_step_costs_its_parts_less_the_weights_read_twice() -> None:
    price = prices()
    decode = price(StepBatch(8, 8 * 512, (), 8)).gpu_us
    prefill = price(StepBatch(0, 0, (Chunk(256, 256),), 1)).gpu_us
    both = price(StepBatch(8, 8 * 512, (Chunk(256, 256),), 9)).gpu_us

    assert max(decode, prefill) < both < decode + prefill


def test_prices_lie_between_those_of_the_nodes_beside_them() -> None:
    """Eight nodes for each doubling; small numbers are nodes."""
    assert [_nodes(value) for value in (0.5, 3.25, 8)] == [(1, 2, 0.0), (3, 4, 0.25), (8, 9, 0.0)]
    below, above, share = _nodes(100)
    assert (below, above) == (round(2 ** (53 / 8)), round(2 ** (54 / 8)))
    assert below ** (1 - share) * above**share == pytest.approx(100)


def test_equal_steps_are_priced_once() -> None:
    engine = Engine("compiled")
    predictor = Simple()
    price = StepPrices(program(), H100, predictor, HOST, engine)
    batch = StepBatch(8, 8 * 600, (Chunk(100, 300),), 9)

    first = price(batch)
    asked = predictor.asked

    assert price(batch) == first
    assert predictor.asked == asked


def test_a_graph_runs_for_the_tokens_that_it_was_captured_for() -> None:
    price = prices(Engine("vllm"))

    costs = {n: price(StepBatch(n, 0, (), 1)).gpu_us for n in (9, 16, 17)}
    attention = {n: price._attention_us(StepBatch(n, 0, (), 1)) for n in costs}

    assert costs[9] - attention[9] == pytest.approx(costs[16] - attention[16])
    assert costs[17] - attention[17] > costs[16] - attention[16]


def test_scheduling_beside_the_gpu_hides_the_host() -> None:
    batch = StepBatch(64, 64 * 90000, (), 64)

    hidden = prices(Engine("vllm", overlaps=True))(batch)
    shown = prices(Engine("vllm", overlaps=False))(batch)

    assert shown.gpu_us == hidden.gpu_us
    assert shown.latency_us > hidden.latency_us


def test_a_step_that_waits_for_the_host_is_bound_by_it() -> None:
    cost = prices(Engine("eager"), host_us=50_000.0)(StepBatch(1, 10, (), 1))

    assert BOUNDS[cost.bound] == "host"
    assert cost.latency_us > 50_000.0


def test_a_window_bounds_what_a_decode_reads() -> None:
    near = prices(windows=(256,))
    batches = [StepBatch(4, 4 * context, (), 4) for context in (256, 4000)]

    costs = [near(batch).gpu_us for batch in batches]

    assert costs[0] == pytest.approx(costs[1])


def test_ranks_pay_for_what_they_exchange() -> None:
    engine = Engine("compiled")
    two = prices(engine, ranks=2)

    assert any(isinstance(one.base.size, CollectiveSize) for one, _ in two.program.kernels)
    assert all(layer.heads == 4 and layer.kv_heads == 1 for layer, _ in two.program.attentions)


@pytest.mark.parametrize(("ranks", "limit"), [(2, 2**23), (4, 2**19), (8, 2**18)])
def test_a_small_all_reduce_of_vllm_is_one_shot_and_a_larger_one_two(
    ranks: int, limit: int
) -> None:
    price = prices(Engine("vllm"))

    def us(num_bytes: int) -> float:
        return price._custom_us(Kernel.collective("all_reduce", num_bytes, ranks))

    def directly(num_bytes: int, *, in_two: bool) -> float:
        return direct_us(CollectiveSize(num_bytes, ranks, 1), H100, in_two=in_two)

    assert us(limit) == directly(limit, in_two=False)
    assert us(2**23 + 1) == math.inf == price._custom_us(Kernel.collective("broadcast", 8, ranks))
    if limit < 2**23:
        assert us(limit + 1) == directly(limit + 1, in_two=True)


def test_the_stages_of_a_pipeline_share_layers_and_weights() -> None:
    given = {"engine": Engine("vllm"), "parameter_bytes": 10**8}
    layered = [
        replace(
            point,
            launches=tuple(
                launch._replace(module=f"m.{number}.{launch.module}")
                for number in range(3)
                for launch in point.launches[:3]
            )
            + point.launches[3:],
        )
        for point in points()
    ]

    [whole] = pipeline_programs(layered, **given)  # type: ignore[arg-type]
    stages = pipeline_programs(layered, stages=2, **given)  # type: ignore[arg-type]

    assert [sum(n for _, n in one.attentions) for one in stages] == [2, 1]
    assert sum(one.kv_bytes_per_token for one in stages) == whole.kv_bytes_per_token
    assert sum(one.weight_bytes for one in stages) == pytest.approx(whole.weight_bytes, abs=2)
    sent = [one.base.name for one, _ in stages[1].kernels if one.base.name == "send_recv"]
    assert sent == ["send_recv"]
    with pytest.raises(OptionError, match="the model has 3"):
        pipeline_programs(layered, stages=4, **given)  # type: ignore[arg-type]


def test_fewer_bits_leave_room_for_more_tokens() -> None:
    def tokens(**changed: object) -> int:
        return capacity_of(
            program(**changed), H100, utilization=0.9, max_tokens=2048, max_seqs=256, block_size=16
        ).num_tokens

    assert tokens(kv_dtype="float8_e4m3fn") == pytest.approx(2 * tokens(), rel=0.01)
    assert tokens(quantization="int4") > tokens()


def test_adapters_take_memory_and_time() -> None:
    engine = Engine("compiled")
    batch = StepBatch(4, 400, (), 4)

    with_adapters = prices(engine, adapters=Adapters(4, 8))

    assert with_adapters.program.weight_bytes - program().weight_bytes == sum(
        4 * 8 * (n + k) * 2 for n, k in ((1024, 512), (512, 512))
    )
    assert with_adapters(batch).gpu_us > prices(engine)(batch).gpu_us


def test_latent_attention_keeps_its_values_as_a_part_of_its_keys() -> None:
    latent = AttentionLayer(16, 1, 576, 512, "bfloat16", "")

    assert latent.cached_bytes("") == 2 * 576
    assert latent._replace(head_dim_v=576).cached_bytes("float8_e4m3fn") == 2 * 576


def test_a_model_that_keeps_nothing_serves_any_number_of_any_length() -> None:
    stateless = replace(program(), attentions=(), kv_bytes_per_token=0)

    found = capacity_of(
        stateless, H100, utilization=0.9, max_tokens=2048, max_seqs=256, block_size=16
    )

    assert (found.num_blocks, found.block_size, found.state_blocks) == (2**24, 2**31, 0)


def test_a_model_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(OptionError, match=r"does not fit into H100.*--tp"):
        capacity_of(
            program(parameter_bytes=10**12), H100, utilization=0.9, max_tokens=2048,
            max_seqs=256, block_size=16,
        )  # fmt: skip


def test_attention_is_not_among_the_fitted_kernels() -> None:
    assert not any(isinstance(one.base.size, AttentionSize) for one, _ in program().kernels)

"""Steps are filled by vLLM's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.errors import OptionError
from neusight.serving.load import InferenceRequest, Lengths, Load, RequestClass
from neusight.serving.scheduler import (
    Chunk,
    SchedulerOptions,
    ServerRun,
    StepBatch,
    StepCost,
    simulate,
)
from neusight.serving.static_batching import simulate_static


class Prices:
    """A millisecond a step, whatever it holds; remembers what each held."""

    def __init__(self) -> None:
        self.batches: list[StepBatch] = []

    def __call__(self, batch: StepBatch) -> StepCost:
        self.batches.append(batch)
        return StepCost(1000.0, 1, 1000.0)


def options(**changed: object) -> SchedulerOptions:
    given = {"num_blocks": 100, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return SchedulerOptions(**{**given, **changed})  # type: ignore[arg-type]


def run(requests: list[InferenceRequest], **changed: object) -> tuple[ServerRun, list[StepBatch]]:
    prices = Prices()
    return simulate(requests, options(**changed), prices), prices.batches


def test_a_prompt_is_cut_into_chunks_of_the_token_budget() -> None:
    _, batches = run([InferenceRequest(0, 0.0, 150, 1)])

    assert [batch.chunks for batch in batches] == [
        (Chunk(64, 64),),
        (Chunk(64, 128),),
        (Chunk(22, 150),),
    ]
    assert [batch.sampled for batch in batches] == [0, 0, 1]


def test_decodes_go_before_prompts_which_get_the_rest_of_the_budget() -> None:
    _, batches = run([InferenceRequest(0, 0.0, 10, 5), InferenceRequest(1, 0.0005, 100, 1)])

    assert batches[1] == StepBatch(1, 11, (Chunk(63, 63),), 1)
    assert batches[2] == StepBatch(1, 12, (Chunk(37, 100),), 2)


def test_the_first_token_comes_with_the_prompts_last_chunk() -> None:
    served = run([InferenceRequest(0, 0.0, 100, 3)])[0].served[0]

    assert served.first_token_s == pytest.approx(0.002)
    assert served.last_token_s == pytest.approx(0.004)
    assert served.tpot_s == pytest.approx(0.001)


def test_no_more_sequences_run_than_may() -> None:
    requests = [InferenceRequest(at, 0.0, 4, 10) for at in range(5)]

    found, _ = run(requests, max_num_seqs=2)

    assert max(step.running for step in found.steps) == 2
    assert len(found.served) == 5


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_it_whole() -> None:
    requests = [InferenceRequest(0, 0.0, 40, 2), InferenceRequest(1, 0.0, 40, 2)]

    _, batches = run(requests, chunked_prefill=False)

    assert [len(batch.chunks) for batch in batches] == [1, 1, 0]
    assert batches[1].chunks == (Chunk(40, 40),)


def test_where_blocks_run_out_the_sequence_that_started_last_is_computed_again() -> None:
    requests = [InferenceRequest(0, 0.0, 16, 20), InferenceRequest(1, 0.0, 16, 20)]

    found, batches = run(requests, num_blocks=3, keeps_prefixes=False)

    assert [one.preemptions for one in sorted(found.served, key=lambda one: one.request.index)] == [
        0,
        1,
    ]
    again = [chunk for batch in batches[1:] for chunk in batch.chunks]
    assert sum(chunk.tokens for chunk in again) == 16 + 1  # its prompt and its first token
    assert found.served[-1].request.index == 1


def test_a_preempted_sequence_finds_those_of_its_blocks_that_nobody_used() -> None:
    requests = [InferenceRequest(0, 0.0, 16, 20), InferenceRequest(1, 0.0, 48, 20)]

    _, kept = run(requests, num_blocks=5)
    _, lost = run(requests, num_blocks=5, keeps_prefixes=False)

    def tokens(batches: list[StepBatch]) -> int:
        return sum(chunk.tokens for batch in batches for chunk in batch.chunks)

    assert tokens(kept) < tokens(lost)


def test_under_priorities_the_least_important_is_preempted_and_the_first_goes_first() -> None:
    requests = [
        InferenceRequest(0, 0.0, 16, 20, priority=5),
        InferenceRequest(1, 0.0, 16, 20, priority=1),
        InferenceRequest(2, 0.0, 16, 1, priority=0),
    ]

    found, batches = run(
        requests, num_blocks=3, policy="priority", max_num_seqs=2, keeps_prefixes=False
    )

    preempted = {one.request.index: one.preemptions for one in found.served}
    assert preempted[0] >= 1
    assert preempted[1] == 0
    assert found.served[0].request.index == 2
    assert len(batches[0].chunks) == 2


def test_under_priorities_a_prompt_under_way_is_preempted_before_what_is_more_important() -> None:
    requests = [
        InferenceRequest(0, 0.0, 16, 40, priority=1),
        InferenceRequest(1, 0.0015, 200, 4, priority=5),
    ]

    found, _ = run(requests, num_blocks=14, max_num_batched_tokens=32, policy="priority",
                   keeps_prefixes=False, reserves_input=False)  # fmt: skip

    preempted = {one.request.index: one.preemptions for one in found.served}
    assert preempted[0] == 0
    assert preempted[1] >= 1


def test_cached_tokens_do_not_enter_again() -> None:
    _, batches = run([InferenceRequest(0, 0.0, 50, 1, cached_tokens=40)])

    assert batches[0].chunks == (Chunk(18, 50),)  # 32 of the 40 fill whole blocks


def test_the_next_turn_arrives_after_the_answer_and_the_pause() -> None:
    later = InferenceRequest(1, 0.0, 4, 1)

    found, _ = run([InferenceRequest(0, 0.0, 4, 3, next_turn=later, think_s=0.5)])

    assert found.served[1].arrival_s == pytest.approx(0.503)


def test_accepted_drafts_come_with_the_token_that_follows_them() -> None:
    found, batches = run([InferenceRequest(0, 0.0, 4, 10)], drafts=2, acceptance=1.0)

    assert [batch.queries for batch in batches] == [3] * 4  # the prompt, then 3 + 3 + 3
    assert sum(step.new_tokens for step in found.steps) == 10


def test_no_accepted_drafts_are_a_token_a_step() -> None:
    found, batches = run([InferenceRequest(0, 0.0, 4, 10)], drafts=2, acceptance=0.0)

    assert len(batches) == 10
    assert sum(step.new_tokens for step in found.steps) == 10


@pytest.mark.parametrize(
    ("request_", "changed", "stated"),
    [
        (InferenceRequest(0, 0.0, 90, 20), {"max_model_len": 100}, "--max-model-len"),
        (InferenceRequest(0, 0.0, 90, 20), {"num_blocks": 6}, "needs 7 blocks of the KV cache"),
        (InferenceRequest(0, 0.0, 90, 20), {"chunked_prefill": False}, "prompts are not cut"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_with_the_limit(
    request_: InferenceRequest, changed: dict[str, object], stated: str
) -> None:
    with pytest.raises(OptionError, match=stated):
        run([request_], **changed)


@given(st.integers(1, 4000), st.integers(0, 500), st.sampled_from([0.25, 1.0]))
def test_layers_with_a_window_keep_no_more_than_it(tokens: int, window: int, share: float) -> None:
    windowed = options(window=window, window_share=share)

    whole = options().blocks_of(tokens)
    kept = min(whole, options().blocks_of(window) + 1)
    exact = share * kept + (1 - share) * whole
    assert exact <= windowed.blocks_of(tokens) < exact + 1
    assert windowed.blocks_of(tokens) <= windowed.blocks_of(tokens + 1)


def test_a_budget_below_the_sequences_is_refused() -> None:
    with pytest.raises(OptionError, match="--max-num-batched-tokens"):
        options(max_num_seqs=65)


LOADS = st.builds(
    Load,
    classes=st.just((RequestClass(Lengths("uniform", 1, 90), Lengths("uniform", 1, 60)),)),
    num_requests=st.integers(1, 25),
    rate=st.sampled_from([10.0, 1000.0]),
    turns=st.integers(1, 3),
    hit_rate=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 50),
)


@given(
    LOADS,
    st.integers(40, 80),
    st.sampled_from(["fcfs", "priority"]),
    st.sampled_from([0, 2]),
    st.booleans(),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([1, 2, 3]),
)
def test_every_token_is_served_once_and_no_block_is_lost(
    load: Load,
    num_blocks: int,
    policy: str,
    drafts: int,
    keeps: bool,
    window_share: float,
    stages: int,
) -> None:
    requests = load.requests(most_tokens=600)
    found, batches = run(
        requests,
        num_blocks=num_blocks,
        policy=policy,
        drafts=drafts,
        acceptance=0.6,
        keeps_prefixes=keeps,
        window=40,
        window_share=window_share,
        stages=stages,
    )

    wanted = sum(one.request.output_tokens for one in found.served)
    assert len(found.served) == load.num_requests
    assert sum(step.new_tokens for step in found.steps) == wanted
    assert all(batch.tokens <= 64 for batch in batches)
    assert all(0 <= step.used_blocks <= num_blocks for step in found.steps)
    assert all(one.arrival_s <= one.scheduled_s <= one.first_token_s for one in found.served)
    assert all(one.first_token_s <= one.last_token_s for one in found.served)
    assert all(step.running <= 8 for step in found.steps)
    assert sum(count for _, count in found.gaps_s) <= wanted - len(found.served)


@given(LOADS)
def test_a_server_stands_still_only_until_the_next_request_arrives(load: Load) -> None:
    found, _ = run(load.requests(most_tokens=600), num_blocks=60)

    arrivals = {one.arrival_s for one in found.served}
    for step, after in zip(found.steps, found.steps[1:], strict=False):
        if after.start_s > step.start_s + step.latency_s:
            assert step.waiting == 0
            assert after.start_s in arrivals


class Staged:
    """A millisecond in each of two stages."""

    def __call__(self, batch: StepBatch) -> StepCost:
        return StepCost(2000.0, 1, 1000.0, (1000.0, 1000.0))


def test_a_pipeline_has_a_batch_in_each_stage() -> None:
    requests = [InferenceRequest(0, 0.0, 64, 3), InferenceRequest(1, 0.0, 64, 3)]

    found = simulate(requests, options(stages=2), Staged())

    assert [step.lane for step in found.steps] == [0, 1, 0, 1, 0, 1]
    assert [1e3 * step.start_s for step in found.steps] == pytest.approx([0, 0, 2, 3, 4, 5])
    assert [1e3 * step.latency_s for step in found.steps] == pytest.approx([2, 3, 2, 2, 2, 2])
    assert found.end_s == pytest.approx(0.007)  # one after the other they would take 12


def test_equal_loads_are_served_equally() -> None:
    load = Load((RequestClass(Lengths("uniform", 1, 90), Lengths("uniform", 1, 60)),), 40)
    requests = load.requests(most_tokens=600)

    one, _ = run(requests, num_blocks=30, drafts=2, acceptance=0.5, max_model_len=400)
    other, _ = run(requests, num_blocks=30, drafts=2, acceptance=0.5, max_model_len=400)

    assert one == other


def test_a_static_batch_ends_with_its_longest_answer() -> None:
    prices = Prices()
    requests = [
        InferenceRequest(0, 0.0, 8, 2),
        InferenceRequest(1, 0.0, 4, 5),
        InferenceRequest(2, 0.0005, 4, 1),
    ]

    found = simulate_static(requests, options(), prices)

    assert prices.batches[0].chunks == (Chunk(8, 8), Chunk(8, 8))  # padded
    assert [batch.decodes for batch in prices.batches] == [0, 2, 2, 2, 2, 0]
    ends = {one.request.index: one.last_token_s for one in found.served}
    assert ends == pytest.approx({0: 0.002, 1: 0.005, 2: 0.006})


def test_each_sequence_holds_the_blocks_of_its_state_too() -> None:
    given = [InferenceRequest(at, 0.0, 16, 8) for at in range(8)]

    plain, _ = run(given, num_blocks=20)
    with_states, _ = run(given, num_blocks=20, state_blocks=3)

    assert max(step.running for step in plain.steps) == 8
    assert max(step.running for step in with_states.steps) == 4
    assert options(state_blocks=3).blocks_of(17) == 2 + 3

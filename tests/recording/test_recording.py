"""The values of a recording: specs, signatures, steps that unfold."""

from __future__ import annotations

import pytest
from default_values import numbers_by_default
from hypothesis import given
from hypothesis import strategies as st

from neusight.recording.recording import (
    Alloc,
    Batch,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    MathMode,
    ModelInput,
    OpCall,
    Operator,
    OpSignature,
    Recording,
    Step,
    StorageRef,
    Synchronize,
    TensorSpec,
    contiguous_strides,
    flattened,
    release_of,
    replays,
    stepped_optimizer,
)
from places import require_golden


def recording_of(*steps: Step) -> Recording:
    return Recording(steps=steps, gpu="H100-SXM5-80GB", torch_version="2.13.0")


def test_what_is_of_one_kind_is_found_in_lists_of_lists_in_order() -> None:
    assert flattened((1, [2, ("three", [4])], None, {5: 6}), int) == [1, 2, 4]
    assert flattened("one", str) == ["one"]
    assert flattened(None, int) == []


def test_a_spec_knows_its_memory_format() -> None:
    rows = TensorSpec((2, 3, 4, 5), (60, 20, 5, 1), "float16")
    channels_last = TensorSpec((2, 3, 4, 5), (60, 1, 15, 3), "float16")
    transposed = TensorSpec((4, 5), (1, 4), "float32")

    assert rows.is_contiguous
    assert not rows.is_channels_last
    assert channels_last.is_channels_last
    assert not channels_last.is_contiguous
    assert not transposed.is_contiguous


def test_an_expanded_dimension_is_read_once() -> None:
    assert TensorSpec((1000, 8), (0, 1), "float32").num_bytes == 32
    assert TensorSpec((1000, 8), (8, 1), "float32").num_bytes == 32_000


def test_a_repeated_argument_is_read_with_the_other() -> None:
    assert TensorSpec((1000, 8), (8, 1), "float32", is_repeated=True).num_bytes == 0


def test_an_empty_tensor_has_no_bytes() -> None:
    assert TensorSpec((0, 8), (8, 1), "float32").num_bytes == 0
    assert TensorSpec((0, 8), (0, 1), "float32").num_bytes == 0


def test_a_signature_finds_its_tensors_in_lists() -> None:
    spec = TensorSpec((2,), (1,), "float32")
    signature = OpSignature(
        "aten::cat", "default", (("tensors", (spec, spec)), ("dim", 0)), (spec,)
    )

    assert signature.input_tensors == (spec, spec)
    assert signature.output_tensors == (spec,)
    assert signature.optional_tensor("dim") is None


def test_a_program_can_be_taken_as_that_of_another_torch() -> None:
    call = OpCall(OpSignature("aten::mm", "default", (), ()), MathMode(matmul_tf32=True))

    older = recording_of(Step("train", (call, Alloc(0, 1), call))).as_torch("2.5.0+cu124")

    assert older.torch_version == "2.5.0+cu124"
    first, alloc, second = older.steps[0].entries
    assert isinstance(first, OpCall)
    assert isinstance(second, OpCall)
    assert first.math == MathMode(matmul_tf32=True, torch=(2, 5))
    assert first.math is second.math  # one object: prices are kept by it
    assert alloc == Alloc(0, 1)


def test_an_unknown_torch_is_the_newest() -> None:
    assert release_of("") > release_of("2.13.0a0+git1234") == (2, 13)


def test_a_folded_step_is_replayed_a_few_times_and_counts_for_all() -> None:
    recording = recording_of(Step("setup", ()), Step("train", (Alloc(0, 1),), 10_000))

    runs = list(replays(recording))

    assert len(runs) < 8
    assert sum(run.represents for run in runs) == 10_001
    assert runs[-1].index == 10_000


@given(count=st.integers(1, 50), age=st.integers(0, 3))
def test_each_storage_that_a_replay_frees_was_allocated_once(count: int, age: int) -> None:
    entries: tuple[Entry, ...] = (Alloc(0, 8), Free(StorageRef(age, 0)))
    live: set[tuple[int, int]] = set()

    for run in replays(recording_of(Step("train", entries, count))):
        live.add(run.alloc_id(Alloc(0, 8)))
        freed = run.storage_id(StorageRef(age, 0))
        if freed is not None:
            assert freed in live
            live.remove(freed)

    assert len(live) == min(age, count)


def test_a_storage_of_the_setup_is_not_taken_for_one_of_a_folded_step() -> None:
    folded = Step("eval", (Alloc(0, 2**20),), 10)
    after = Step("train", tuple(Free(StorageRef(age, 0)) for age in range(1, 12)))

    *_, last = replays(recording_of(Step("setup", (Alloc(0, 100 * 2**20),)), folded, after))

    homes = [last.storage_id(StorageRef(age, 0)) for age in range(1, 12)]
    assert homes[0] == (10, 0)
    assert (0, 0) not in homes[:10]
    assert homes[10] == (0, 0) or last.storage_id(StorageRef(11, 0)) is None


def test_a_mark_states_whose_step_it_is() -> None:
    assert stepped_optimizer("Optimizer.step#AdamW.step") == "AdamW"
    assert stepped_optimizer("Optimizer.zero_grad#AdamW.zero_grad") == ""


def test_steps_that_are_asked_for_are_run_where_they_are_folded_away() -> None:
    recording = recording_of(Step("train", (), 10), Step("eval", (), 4), Step("train", (), 2))

    runs = [(run.index, run.represents) for run in replays(recording, also={1, 2, 5, 8, 9, 12, 15})]

    assert runs == [
        (0, 1), (1, 1), (2, 1), (5, 1), (8, 1), (9, 5),
        (10, 1), (11, 1), (12, 1), (13, 1),
        (14, 1), (15, 1),
    ]  # fmt: skip
    assert [run.index for run in replays(recording)] == [0, 1, 9, 10, 11, 13, 14, 15]


@pytest.mark.parametrize(
    ("count", "age", "runs"),
    [
        # Number of the step, how many it stands for, and the run that has a storage of that age.
        (1, 0, [(0, 1, 0)]),
        (2, 0, [(0, 1, 0), (1, 1, 1)]),
        (3, 0, [(0, 1, 0), (1, 1, 1), (2, 1, 2)]),
        (4, 0, [(0, 1, 0), (1, 1, 1), (3, 2, 3)]),
        (100, 0, [(0, 1, 0), (1, 1, 1), (99, 98, 99)]),
        (3, 1, [(0, 1, None), (1, 1, 0), (2, 1, 1)]),
        (4, 1, [(0, 1, None), (1, 1, 0), (2, 1, 1), (3, 1, 2)]),
        (100, 1, [(0, 1, None), (1, 1, 0), (2, 1, 1), (99, 97, 2)]),
        (100, 2, [(0, 1, None), (1, 1, None), (2, 1, 0), (3, 1, 1), (99, 96, 2)]),
        (4, 4, [(0, 1, None), (1, 1, None), (3, 2, None)]),
        (4, 3, [(0, 1, None), (1, 1, None), (2, 1, None), (3, 1, 0)]),
    ],
)
def test_storages_of_a_folded_step_are_found_as_far_from_its_end(
    count: int, age: int, runs: list[tuple[int, int, int | None]]
) -> None:
    ref = StorageRef(age, 7)

    found = [*replays(recording_of(Step("train", (Free(ref),), count)))]

    homes = [run.storage_id(ref) for run in found]
    shown = zip(found, homes, strict=True)
    assert [(run.index, run.represents, home and home[0]) for run, home in shown] == runs
    assert all(home is None or home[1] == 7 for home in homes)
    assert [run.alloc_id(Alloc(3, 8)) for run in found] == [(run.index, 3) for run in found]


def test_what_is_not_stated_is_the_usual() -> None:
    signature = OpSignature("aten::mm", "default", (), ())
    modes = MathMode(False, True, False, False, True, (99, 0), False, ("float16", "bfloat16"))
    call = OpCall(signature, MathMode())
    alloc, wait = Alloc(1, 8), Synchronize("item")

    assert MathMode() == modes
    assert (call.module, call.phase, call.stream, call.sequence_nr) == ("", "forward", 0, None)
    assert (call.node, call.stack, call.thread) == ("", (), 0)
    assert alloc == Alloc(1, 8, "", "", "forward", "activation", (), 0)
    assert (wait.source, wait.stream, wait.event, wait.stack, wait.thread) == (
        "",
        None,
        None,
        (),
        0,
    )
    assert (EventRecord(1, 2).thread, EventWait(1, 2).thread) == (0, 0)
    assert Mark("graph_begin", "graph").instance == 0
    assert HostWork("cpu ops", 2.0) == HostWork("cpu ops", 2.0, 1)
    assert ModelInput(2, 3) == ModelInput(2, 3, False, 0, 0, False)
    assert Step("eval", ()) == Step("eval", (), 1, Batch())
    assert Operator("aten::to", 2, 3) == ("aten::to", 2, 3, 0, False, None, False)
    recording = recording_of()
    assert (recording.world_size, recording.rank, recording.gpus_per_node) == (1, 0, 1)
    assert TensorSpec((), (), "int8") == ((), (), "int8", "cuda", False, False)


@pytest.mark.parametrize(
    ("shape", "stride", "row_major", "channels_last", "dense_channels_last"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), True, False, False),
        ((2, 3, 4, 5), (60, 1, 15, 3), False, True, True),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), False, True, True),
        ((8, 3, 1, 1), (3, 1, 1, 1), True, False, True),  # both
        ((8, 1, 4, 4), (16, 1, 4, 1), True, False, True),
        ((2, 3, 4), (12, 1, 3), False, False, False),
        ((2, 3, 2, 2, 2, 2), (48, 1, 24, 12, 6, 3), False, False, False),
        ((2, 3, 4, 5), (61, 1, 15, 3), False, False, False),  # with a gap
        ((), (), True, False, False),
        ((1, 5), (99, 1), True, False, False),
        ((5, 1), (2, 1), False, False, False),
    ],
)
def test_strides_say_the_order(
    shape: tuple[int, ...], stride: tuple[int, ...], row_major: bool, channels_last: bool,
    dense_channels_last: bool,
) -> None:  # fmt: skip
    spec = TensorSpec(shape, stride, "float16")

    found = (spec.is_contiguous, spec.is_channels_last, spec.is_dense_channels_last)
    assert found == (row_major, channels_last, dense_channels_last)


def test_bytes_are_those_of_the_dtype() -> None:
    sizes = {"bool": 3, "float16": 6, "int32": 12, "complex128": 48, "of another kind": 12}

    assert {name: TensorSpec((3,), (1,), name).num_bytes for name in sizes} == sizes
    assert contiguous_strides((3, 0, 4)) == (4, 4, 1)
    assert contiguous_strides(()) == ()


def test_a_rate_is_of_tokens_where_both_are_known() -> None:
    assert Batch(samples=8).per_second(2.0) == (4e6, "samples")
    assert Batch(samples=8, tokens=16).per_second(2.0) == (8e6, "tokens")
    assert Batch(tokens=16).per_second(0.5) == (32e6, "tokens")
    assert Batch(samples=8).per_second(0.0) is None
    assert Batch().per_second(2.0) is None
    assert Batch(samples=2).times(3) == Batch(samples=6)
    assert Batch(tokens=2).times(3) == Batch(tokens=6)
    assert not Batch()
    assert Batch(samples=0) and Batch(tokens=0)


def test_ops_of_equal_steps_are_counted_each() -> None:
    call = OpCall(OpSignature("aten::mm", "default", (), ()), MathMode())

    recording = recording_of(Step("setup", (call,)), Step("train", (call, Alloc(0, 1), call), 10))

    assert recording.num_ops == 21


def test_numbers_that_are_not_stated_are_as_the_golden_table_has_them() -> None:
    """Of functions and values by default; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    require_golden("defaults_recording.txt", numbers_by_default("neusight.recording"))

"""A saved recording: the same after a round trip, refused with reasons when it is not one."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.errors import RecordingError
from neusight.recording.recording import (
    Alloc,
    CompiledFrame,
    Entry,
    EventRecord,
    EventWait,
    Free,
    GraphBreak,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    Operator,
    OpSignature,
    Recording,
    Step,
    StorageRef,
    Synchronize,
    TensorSpec,
)
from neusight.recording.saving import load_recording, load_recordings, save_recording

SPEC = TensorSpec((2, 3), (3, 1), "float32")
CALL = OpCall(
    OpSignature(
        "aten::clamp",
        "default",
        (("self", SPEC), ("min", -math.inf), ("max", SPEC._replace(is_repeated=True))),
        (SPEC._replace(is_pinned=True),),
    ),
    MathMode(matmul_tf32=True, torch=(2, 13)),
    module="Net.0",
    sequence_nr=4,
)


def recording_of(*entries: Entry, count: int = 1) -> Recording:
    return Recording(
        steps=(Step("train", entries, count),),
        gpu="H100-SXM5-80GB",
        torch_version="2.13.0",
        queries=(("total_memory", "1"),),
        warnings=("a note",),
        script="train.py --fast",
    )


def test_what_was_compiled_is_kept_and_may_be_missing(tmp_path: Path) -> None:
    stop = GraphBreak("net.py:12", "train.py:3", "Failed to trace builtin operator: print")
    frame = CompiledFrame("0/1", "step", "train.py:2", 7, "size mismatch", "train.py:2", (stop,))
    recording = replace(recording_of(CALL), compiled=(frame,))
    save_recording(recording, tmp_path / "new.json")
    document = json.loads((tmp_path / "new.json").read_text())
    del document["compiled"]  # as before torch.compile was recorded
    (tmp_path / "old.json").write_text(json.dumps(document))

    assert load_recording(tmp_path / "new.json")[0] == recording
    assert load_recording(tmp_path / "old.json")[0] == replace(recording, compiled=())


@pytest.mark.parametrize(
    "row",
    [
        ["0/0", "step", "a.py:1", -1, "", "", []],
        ["0/0", "step", "a.py:1", 1, "", "", [["a.py:1", "why"]]],
        ["0/0", "step"],
    ],
)
def test_damage_in_what_was_compiled_is_named(row: list[Any], tmp_path: Path) -> None:
    save_recording(recording_of(CALL), tmp_path / "saved.json")
    document = json.loads((tmp_path / "saved.json").read_text())
    (tmp_path / "saved.json").write_text(json.dumps({**document, "compiled": [row]}))

    with pytest.raises(RecordingError, match="is no row of the kind"):
        load_recording(tmp_path / "saved.json")


entries = st.lists(
    st.one_of(
        st.just(CALL),
        st.builds(EventRecord, st.integers(0, 9), st.integers(0, 9)),
        st.builds(EventWait, st.integers(0, 9), st.integers(0, 9)),
        st.builds(Free, st.builds(StorageRef, st.integers(0, 3), st.integers(0, 9))),
        st.builds(HostWork, st.text(max_size=5), st.floats(0, 1e6), st.integers(1, 9)),
        st.builds(Mark, st.sampled_from(["module_begin", "annotation_end"]), st.text(max_size=5)),
        st.builds(Synchronize, st.text(max_size=5), st.text(max_size=5)),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(entries=entries, count=st.integers(1, 10_000))
def test_a_round_trip_changes_nothing(
    entries: list[Entry], count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recording = recording_of(*entries, Alloc(0, 512, "Net", "aten::add"), count=count)
    path = tmp_path_factory.getbasetemp() / "recording.json.gz"

    save_recording(recording, path, gpu="H100")

    assert load_recording(path) == (recording, {"gpu": "H100"})


def test_equal_recordings_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        save_recording(recording_of(CALL, CALL), tmp_path / name)

    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"{not json", "cannot be read"),
        (b"[]", "is not a saved forecast"),
        (b'{"traceEvents": []}', "is not a saved forecast"),
        (b'{"neusight_recording": 99}', "schema version 99"),
        (b'{"neusight_recording": 2}', "is damaged"),
    ],
)
def test_what_is_no_recording_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(content)

    with pytest.raises(RecordingError, match=words):
        load_recording(tmp_path / "file.json")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    save_recording(recording_of(CALL), tmp_path / "whole.json.gz")
    data = (tmp_path / "whole.json.gz").read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(data[: len(data) // 2])

    with pytest.raises(RecordingError, match="cannot be read"):
        load_recording(tmp_path / "cut.json.gz")


def test_an_index_that_points_nowhere_is_refused(tmp_path: Path) -> None:
    save_recording(recording_of(CALL), tmp_path / "a.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))
    document["calls"][0][0] = 7
    (tmp_path / "b.json").write_text(json.dumps(document))

    with pytest.raises(RecordingError, match="is damaged"):
        load_recording(tmp_path / "b.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        load_recording(tmp_path / "nowhere.json")


def test_the_lines_that_led_to_an_op_are_kept(tmp_path: Path) -> None:
    stack = ("model.py:7", "train.py:20")
    entries = (
        replace(CALL, stack=stack),
        Alloc(0, 512, "Net", "aten::add", stack=stack),
        Synchronize("item", "train.py:21", stack=stack),
    )

    recording = replace(recording_of(*entries), made={"Net.0": stack})
    save_recording(recording, tmp_path / "a.json")
    loaded, _ = load_recording(tmp_path / "a.json")

    stacks = [getattr(entry, "stack", None) for entry in loaded.steps[0].entries]
    assert stacks == [stack] * 3
    assert loaded.made == {"Net.0": stack}


def test_threads_and_instances_are_kept(tmp_path: Path) -> None:
    elsewhere = replace(CALL, thread=2)
    entries = (CALL, elsewhere, elsewhere, EventRecord(1, 3, 1), EventWait(1, 0), Synchronize(
        "event", event=1, thread=1
    ), Mark("module_begin", "Linear", "Linear", 3))  # fmt: skip

    save_recording(recording_of(*entries), tmp_path / "a.json")
    loaded = load_recording(tmp_path / "a.json")[0].steps[0].entries

    assert loaded == entries  # threads do not count for that
    assert [getattr(entry, "thread", None) for entry in loaded] == [0, 2, 2, 1, 0, 1, None]
    assert [getattr(entry, "instance", None) for entry in loaded[-2:]] == [None, 3]
    assert loaded[1] is loaded[2]


def test_which_of_how_many_processes_it_was_is_kept(tmp_path: Path) -> None:
    recording = replace(recording_of(CALL), world_size=16, rank=11, gpus_per_node=8)

    save_recording(recording, tmp_path / "a.json")

    assert load_recording(tmp_path / "a.json")[0] == recording


def test_the_private_pool_of_an_allocation_is_kept(tmp_path: Path) -> None:
    recording = recording_of(Alloc(0, 512, "Net", pool=2), Alloc(1, 512))

    save_recording(recording, tmp_path / "a.json")

    assert load_recording(tmp_path / "a.json")[0] == recording


def damaged(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    entries = (CALL, Alloc(0, 512, "Net"), Free(StorageRef(0, 0)), HostWork("sleep", 3.0))
    save_recording(recording_of(*entries), folder / "a.json")
    document = json.loads((folder / "a.json").read_bytes())
    change(document)
    (folder / "a.json").write_text(json.dumps(document))
    return folder / "a.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["calls"][0].__setitem__(0, -1), r"no row of the kind 'call'"),
        (lambda d: d["calls"][0].__setitem__(0, True), r"no row of the kind 'call'"),
        (lambda d: d["calls"][0].pop(), r"no row of the kind 'call'"),
        (lambda d: d["steps"][0][2].__setitem__(0, -1), r"it names row -1 of 1"),
        (lambda d: d["steps"][0][2].__setitem__(0, {}), r"it names row \{\} of 1"),
        (lambda d: d["steps"][0].__setitem__(1, 0), r"a step is there 0 times"),
        (lambda d: d["steps"][0].__setitem__(1, 10**13), r"a step is there 10000000000000 times"),
        (lambda d: d["steps"][0][2].append(["x"]), r"\['x'\] is no entry"),
        (lambda d: d["steps"][0][2].append([["a"]]), r"is no entry"),
        (lambda d: d["steps"][0][2].append(["f", 0, 1.5]), r"no row of the kind 'f'"),
        (lambda d: d["signatures"][0][3][0]["t"].__setitem__(0, [2]), r"is no tensor"),
        (lambda d: d["signatures"][0][3][0]["t"].__setitem__(0, [2**30, 2**30]), r"is no tensor"),
        (lambda d: d["signatures"][0][3].append({"x": "0"}), r"'0' is given where a number"),
        (lambda d: d["modes"][0].__setitem__(0, 1), r"no row of the kind 'mode'"),
        (lambda d: d["stacks"].append(["a", 1]), r"no list of lines of code"),
        (lambda d: d.update(questions=[["a"]]), r"no row of the kind 'question'"),
        (lambda d: d.update(made={"Net": 9}), r"it names row 9 of"),
        (lambda d: d.update(thread=[[0, 0]]), r"no row of the kind 'thread'"),
        (lambda d: d.update(thread=[[1, 0, 1]]), r"it names row 1 of 1"),
        (lambda d: d.update(thread=[[0, 9, 1]]), r"it names row 9 of 4"),
        (lambda d: d.update(thread=[[0, 1, 1]]), r"entry 1 has no thread"),
        (lambda d: d.update(instance=[[0, 0, 1]]), r"entry 0 has no instance"),
        (lambda d: d.update(rank=1), r"'rank' is 1; it must be below the world size"),
        (lambda d: d.update(world_size=0), r"'world_size' is 0; it must be at least 1"),
        (lambda d: d.update(extra={"gpu": 1}), r"'extra' is .* an object of texts"),
        (lambda d: d.update(gpu=""), r"'gpu' is ''; it must be a text"),
    ],
)
def test_a_damaged_value_is_named(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    path = damaged(tmp_path, change)

    with pytest.raises(RecordingError, match=words) as caught:
        load_recording(path)

    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("Record the program again.")


def test_a_storage_that_lives_for_millions_of_equal_steps_is_refused(tmp_path: Path) -> None:
    save_recording(recording_of(Free(StorageRef(3_000_000, 0)), count=10**9), tmp_path / "a.json")

    with pytest.raises(RecordingError, match="lives for 3000000 equal steps"):
        load_recording(tmp_path / "a.json")


def test_what_cannot_be_read_again_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neusight.recording.saving.MAX_DOCUMENT_BYTES", 100)

    with pytest.raises(RecordingError, match="too large to be saved"):
        save_recording(recording_of(CALL), tmp_path / "a.json")


def test_ranks_beside_the_first_are_kept_with_it(tmp_path: Path) -> None:
    first = replace(recording_of(CALL), world_size=2)
    second = replace(recording_of(CALL, CALL), world_size=2, rank=1)
    save_recording(first, tmp_path / "saved.json", beside=[second], gpu="H100")

    assert load_recordings(tmp_path / "saved.json") == ((first, second), {"gpu": "H100"})
    assert load_recording(tmp_path / "saved.json")[0] == first


def test_damage_in_a_rank_beside_the_first_is_found(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    save_recording(recording_of(CALL), path, beside=[recording_of(CALL)])
    document = json.loads(path.read_text())
    document["beside"][0]["calls"][0][0] = 7
    path.write_text(json.dumps(document))

    with pytest.raises(RecordingError, match="is damaged: it names row 7 of 1"):
        load_recordings(path)


OPERATORS = (
    Operator("aten::linear", 0, 2),
    Operator("aten::to", 0, 0, depth=1),
    Operator("MulBackward0", 2, 2, is_node=True, sequence_nr=3),
)


def test_operators_come_back(tmp_path: Path) -> None:
    recording = recording_of(CALL, CALL)
    steps = (replace(recording.steps[0], operators=OPERATORS),)
    save_recording(replace(recording, steps=steps), tmp_path / "f.json")

    found, _ = load_recording(tmp_path / "f.json")

    assert found.steps[0].operators == OPERATORS


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ([0, 0, 3, 0, None], "no operator of 2 entries"),
        ([0, 2, 1, 0, None], "no operator of 2 entries"),
        ([0, 0, 1, 1, None], "no operator of 2 entries"),
        ([1, 0, 1, 0, None], "names row 1 of 1"),
        ([0, 0, "1", 0, None], "is wrong"),
        ([0, 0, 2, 1, None], "ends after the operator around it"),
    ],
)
def test_damaged_operators_are_refused(tmp_path: Path, row: list[Any], error: str) -> None:
    path = tmp_path / "f.json"
    save_recording(recording_of(CALL, CALL), path)
    document = json.loads(path.read_text())
    document["operator_names"] = [["aten::linear", False]]
    around = [[0, 0, 1, 0, None]] if "around" in error else []
    document["operators"] = [[0, [*around, row]]]
    path.write_text(json.dumps(document))

    with pytest.raises(RecordingError, match=error):
        load_recording(path)

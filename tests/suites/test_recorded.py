"""What was recorded can be kept, and is read instead of run."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.suites import recorded
from neusight.integrations.suites.case import CaseProgram
from neusight.integrations.suites.recorded import record_program
from neusight.predictors.gpu import GPU, find_gpu
from suite_folders import paper_folder

pytest.importorskip("transformers")

PROGRAM = CaseProgram("language", "tiny_gpt", "inf", 1, 8)


def test_a_kept_recording_is_read_and_forecasts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = paper_folder(tmp_path / "data", []), tmp_path / "kept"
    made = record_program(PROGRAM, find_gpu("T4"), folder, kept)

    def refuse(program: CaseProgram, gpu: GPU, data: Path, rank: int) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr(recorded, "_recording", refuse)
    again = record_program(PROGRAM, find_gpu("T4"), folder, kept)

    assert len(list(kept.iterdir())) == 1
    assert again.step_latency_us == made.step_latency_us


def test_a_damaged_recording_is_made_again(tmp_path: Path) -> None:
    folder, kept = paper_folder(tmp_path / "data", []), tmp_path / "kept"
    made = record_program(PROGRAM, find_gpu("T4"), folder, kept)
    [path] = kept.iterdir()
    path.write_bytes(b"damaged")

    again = record_program(PROGRAM, find_gpu("T4"), folder, kept)

    assert again.step_latency_us == made.step_latency_us
    assert path.read_bytes() != b"damaged"


def test_stages_of_a_pipeline_are_recorded_on_each_rank(tmp_path: Path) -> None:
    program = CaseProgram("split", "tiny_gpt", "train", 2, 8, split="pp", num_ranks=2)

    made = record_program(program, find_gpu("H100"), paper_folder(tmp_path, []))

    assert [rank.recording.rank for rank in made.ranks] == [0, 1]


def test_ranks_that_are_alike_are_recorded_once(tmp_path: Path) -> None:
    import torch

    program = CaseProgram("split", "tiny_gpt", "train", 4, 8, split="dp", num_ranks=4)

    made = record_program(program, find_gpu("H100"), paper_folder(tmp_path, []))

    assert made.ranks == ()
    assert made.recording.world_size == 4
    assert not torch.distributed.is_initialized()

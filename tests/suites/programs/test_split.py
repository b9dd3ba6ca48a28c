"""GPT-2 over several GPUs, recorded as one of its ranks."""

from __future__ import annotations

import pytest

from neusight.forecast import Forecast
from neusight.integrations.suites.case import CannotBuild, CaseProgram
from neusight.integrations.suites.programs.split import split_step
from neusight.integrations.suites.recorded import record_program
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import OpCall
from suite_folders import MODELS, paper_folder

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    return paper_folder(tmp_path_factory.mktemp("data"), [])


def split(how: str, place: object) -> Forecast:
    from pathlib import Path

    program = CaseProgram("split", "tiny_gpt", "train", 4, 16, split=how, num_ranks=2)
    return record_program(program, find_gpu("H100"), Path(str(place)))


def collectives(found: Forecast) -> list[str]:
    """Names of the collectives of all steps."""
    return [k.name for k, _ in found.kernels if k.kernel_class is KernelClass.COLLECTIVE]


def test_data_parallel_ranks_sum_their_gradients(folder: object) -> None:
    found = split("dp", folder)

    assert found.recording.world_size == 2
    assert "all_reduce" in collectives(found)


def test_tensor_parallel_ranks_sum_twice_a_layer_in_each_direction(folder: object) -> None:
    found = split("tp", folder)

    entries = found.recording.steps[-1].entries
    ops = [entry.signature.op for entry in entries if isinstance(entry, OpCall)]
    assert sum("allreduce" in op for op in ops) == 2 * 2 * 2


def test_a_tensor_parallel_rank_multiplies_less_than_the_whole(folder: object) -> None:
    assert split("tp", folder).flops_per_step < split("dp", folder).flops_per_step * 2


def test_stages_pass_activations_on_and_gradients_back(folder: object) -> None:
    first, last = split("pp", folder).ranks

    assert {*collectives(first)} == {*collectives(last)} == {"send_recv"}


def test_other_models_are_not_split() -> None:
    with pytest.raises(CannotBuild, match="only GPT-2"):
        split_step(CaseProgram("split", "tiny_bert", "train", 1, 1), MODELS["tiny_bert"])

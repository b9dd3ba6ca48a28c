"""What torchrun, accelerate and deepspeed would start."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.launchers import Launched, is_launcher, launched
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError


def of(*words: str, is_module: bool = False) -> Program:
    return Program(words[0], words[1:], is_module)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            of("torchrun", "--nnodes", "2", "--nproc-per-node", "8", "train.py", "--lr", "1"),
            Launched(of("train.py", "--lr", "1"), Rank(0, 16, 8)),
        ),
        (
            of("/usr/bin/torchrun", "--nproc_per_node=4", "-m", "pkg.train"),
            Launched(of("pkg.train", is_module=True), Rank(0, 4, 4)),
        ),
        (
            of("torch.distributed.run", "--nnodes=1:4", "--node-rank=0", "a.py", is_module=True),
            Launched(of("a.py"), Rank(0, 1, 1)),
        ),
        (
            of("torchrun", "--nnodes=2", "--nproc-per-node=4", "--node-rank=1", "a.py"),
            Launched(of("a.py"), Rank(4, 8, 4)),
        ),
    ],
)
def test_torchruns_own_arguments_say_the_ranks(program: Program, expected: Launched) -> None:
    assert is_launcher(program)
    assert launched(program) == expected


def test_accelerates_own_arguments_say_the_ranks() -> None:
    pytest.importorskip("accelerate")
    program = of("accelerate", "launch", "--num_processes", "16", "--num_machines", "2", "a.py")

    second = replace(program, arguments=("launch", "--machine_rank", "1", *program.arguments[1:]))

    assert launched(program) == Launched(of("a.py"), Rank(0, 16, 8))
    assert launched(second) == Launched(of("a.py"), Rank(8, 16, 8))
    alone = of("accelerate", "launch", "--num_processes", "3", "a.py")
    assert launched(alone) == Launched(of("a.py"), Rank(0, 3, 3))
    uneven = replace(alone, arguments=("launch", "--num_machines", "2", *alone.arguments[1:]))
    with pytest.raises(OptionError, match="3 processes do not fill 2 machines"):
        launched(uneven)


def test_deepspeeds_own_arguments_say_the_ranks() -> None:
    words = ("deepspeed", "--hostfile", "hosts", "--num_nodes", "2", "--num_gpus=8", "a.py", "--lr")

    assert launched(of(*words)) == Launched(of("a.py", "--local_rank=0", "--lr"), Rank(0, 16, 8))


@pytest.mark.parametrize("program", [of("train.py", "torchrun"), of("accelerate", "config")])
def test_other_programs_start_nothing(program: Program) -> None:
    assert launched(program) is None


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("torchrun", "--nproc-per-node", "gpu", "a.py"), "'gpu' asks the machine"),
        (("torchrun", "--nproc-per-node", "0", "a.py"), "say a number"),
        (("deepspeed", "a.py"), "say a number for --num_gpus"),
        (("deepspeed", "--num_gpus", "2", "--what", "a.py"), "deepspeed: unrecognized arguments"),
        (("torchrun",), "torchrun: the following arguments are required: training_script"),
    ],
)
def test_what_leaves_the_ranks_open_is_refused(words: tuple[str, ...], stated: str) -> None:
    with pytest.raises(OptionError, match=stated):
        launched(of(*words))


def test_without_accelerate_its_launcher_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.commands.launch", None)

    with pytest.raises(OptionError, match=r"accelerate is not installed.* say --world-size"):
        launched(of("accelerate", "launch", "a.py"))

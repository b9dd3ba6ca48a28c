"""Checkpoints made in a recording, compared with programs that checkpoint."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import neusight
from neusight.advice.checkpoints import families_of, with_checkpoints
from neusight.recording.recording import (
    Alloc,
    Entry,
    Free,
    Mark,
    MarkKind,
    MathMode,
    OpCall,
    Recording,
    Step,
    StepKind,
    StorageRef,
)
from op_calls import call, spec
from small_net import BLOCKS, peak, train
from timelines import recording_of


@pytest.mark.parametrize("half", [False, True])
def test_checkpoints_save_what_checkpointing_saves(half: bool) -> None:
    changed = with_checkpoints(train(half=half).recording, BLOCKS)

    assert peak(changed) == pytest.approx(train(half=half, recompute=True).peak_memory_bytes, 0.01)


def test_checkpoints_cost_what_checkpointing_costs(plain: neusight.Forecast) -> None:
    real = train(recompute=True)

    changed = plain.of(with_checkpoints(plain.recording, BLOCKS))

    assert changed.gpu_busy_us == pytest.approx(real.gpu_busy_us, 0.03)
    assert changed.gpu_busy_us > 1.1 * plain.gpu_busy_us


def test_what_is_checkpointed_already_is_left_alone() -> None:
    recording = train(recompute=True).recording

    assert with_checkpoints(recording, BLOCKS) == recording


class Shift(nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return F.relu(data * 2) + 1  # of which the backward needs relu's result alone


class Chain(nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.first, self.recompute = nn.Linear(1024, 1024), recompute
        self.blocks = nn.ModuleList(Shift() for _ in range(4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        data = self.first(data)
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.recompute else block(data)
        return data


def test_what_goes_into_a_checkpointed_module_is_kept_until_it_has_run_again() -> None:
    def trained(recompute: bool) -> neusight.Forecast:
        with neusight.forecast_on("A100") as forecast:
            model = Chain(recompute).cuda()
            for _ in range(3):
                model(torch.ones(1024, 1024, device="cuda")).sum().backward()
        return forecast

    recording = trained(recompute=False).recording
    changed = with_checkpoints(recording, frozenset(f"Chain.blocks.{at}" for at in range(4)))

    assert changed != recording
    assert peak(changed) == pytest.approx(trained(recompute=True).peak_memory_bytes, 0.01)


# -- by hand: steps in words --------------------------------------------------------------------


def program(text: str, *, kind: StepKind = "train") -> Recording:
    """A step: `begin m`, `end m`, `forward m`, `backward m`, `alloc 3 400` bytes, `free 3`."""
    entries: list[Entry] = []
    for words in map(str.split, text.split(",")):
        match words:
            case ["begin" | "end" as what, path, *detail]:
                mark: MarkKind = "module_begin" if what == "begin" else "module_end"
                entries.append(Mark(mark, path, detail[0] if detail else "Block"))
            case ["forward" | "backward" as phase, *path]:
                signature = call("relu", spec(4))
                entries.append(OpCall(signature, MathMode(), "".join(path), phase))
            case ["alloc", ordinal, num_bytes]:
                entries.append(Alloc(int(ordinal), int(num_bytes)))
            case ["free", ordinal, *age]:
                entries.append(Free(StorageRef(int(age[0]) if age else 0, int(ordinal))))
            case _:
                raise ValueError(words)
    return recording_of(Step(kind, tuple(entries)))


TWO_BLOCKS = """alloc 0 512, begin net.0, forward net.0, alloc 1 1000, forward net.0.fc,
    alloc 2 600, free 2, forward net.0, alloc 3 400, end net.0, begin net.1, forward net.1,
    alloc 4 300, alloc 5 700, free 3, end net.1, forward, alloc 6 8, backward, backward net.1,
    alloc 7 9, free 4, free 5, backward net.0, free 1, free 0, free 6 1"""


def test_a_checkpointed_block_runs_again_before_its_backward() -> None:
    """Of block 0 storage 1 is freed at its end, and made again as 8; its result, 3, is freed only
    once block 1, which it entered, has run again."""
    changed = with_checkpoints(program(TWO_BLOCKS), frozenset({"net.0", "net.1"}))

    expected = """alloc 0 512, begin net.0, forward net.0, alloc 1 1000, forward net.0.fc,
        alloc 2 600, free 2, forward net.0, alloc 3 400, free 1, end net.0, begin net.1,
        forward net.1, alloc 4 300, alloc 5 700, free 4, end net.1, forward, alloc 6 8, backward,
        backward net.1, alloc 11 300, alloc 12 700, free 12, free 3, backward net.1, alloc 7 9,
        free 11, free 5, backward net.0, alloc 8 1000, backward net.0.fc, alloc 9 600, free 9,
        backward net.0, alloc 10 400, free 10, backward net.0, free 8, free 0, free 6 1"""
    assert changed == program(expected)


@pytest.mark.parametrize(
    "text",
    [
        "begin net.0, forward net.0, alloc 0 8, end net.0, backward, free 0",  # no backward of it
        "begin net.0, alloc 0 8, end net.0, backward net.0, free 0",  # no op
        "begin net.0, forward net.0, alloc 0 8, end net.0, backward net.0, free 0",  # its result
        "begin net.0, forward net.0, alloc 0 8, alloc 1 9, end net.0, free 0, backward net.0",
        "backward net.0, begin net.0, forward net.0, alloc 0 8, alloc 1 9, end net.0, free 0",
    ],
)
def test_what_keeps_nothing_for_its_backward_is_left_alone(text: str) -> None:
    found = program(text)

    assert with_checkpoints(found, frozenset({"net.0"})) == found
    assert families_of(found) == []


def test_only_training_is_checkpointed() -> None:
    found = program(TWO_BLOCKS, kind="eval")

    assert with_checkpoints(found, frozenset({"net.0"})) == found


KEPT = "forward {0}, alloc {1} 8, alloc {2} 9, end {0}"


@pytest.mark.parametrize(
    ("paths", "families"),
    [
        (["net.0 A", "net.1 A"], ["net.*: net.0 net.1"]),
        (["net.0 A"], []),
        (["net.0 A", "net.1 B"], []),
        (["net.a A", "net.b A"], []),
        (["net.0 A", "net.1 A", "net.0.mlp.0 C", "net.0.mlp.1 C"], ["net.*: net.0 net.1"]),
        (
            ["deep.net.0 A", "deep.net.1 A", "net.0 A", "net.1 A"],
            ["net.*: net.0 net.1", "deep.net.*: deep.net.0 deep.net.1"],
        ),
    ],
)
def test_families_are_equal_modules_of_one_list(paths: list[str], families: list[str]) -> None:
    blocks, backward = [], []
    for at, path in enumerate(paths):
        name = path.split()[0]
        blocks.append(f"begin {path}, " + KEPT.format(name, 2 * at, 2 * at + 1))
        backward.append(f"backward {name}, free {2 * at}")

    found = families_of(program(",".join(blocks + backward[::-1])))

    assert [f"{one.pattern}: {' '.join(sorted(one.paths))}" for one in found] == families


def test_weights_in_another_dtype_are_freed_where_backward_turns() -> None:
    """Autocast keeps them until it ends."""
    weight = spec(10, 20)
    half = spec(20, 10, dtype="float16")  # of the transposed
    cast = OpCall(call("_to_copy", half, self=weight), MathMode(), "net.0", "forward")
    [step] = program("begin net.0, forward net.0, alloc 1 8, alloc 2 9, end net.0").steps
    [behind] = program("forward, backward, backward net.0, free 0, free 1").steps
    begin, *inside = step.entries
    entries = (
        OpCall(call("zeros", weight), MathMode()),
        Alloc(9, 800, op="aten::zeros", kind="parameter"),
        begin,
        cast,
        Alloc(0, 400, op="aten::_to_copy"),
        *inside,
        *behind.entries,
    )

    [changed] = with_checkpoints(recording_of(Step("train", entries)), frozenset({"net.0"})).steps

    shown = [
        f"{type(entry).__name__} {entry.storage.ordinal if isinstance(entry, Free) else ''}".strip()
        for entry in changed.entries
    ]
    assert shown == [
        "OpCall", "Alloc", "Mark", "OpCall", "Alloc", "OpCall", "Alloc", "Alloc", "Free 1", "Mark",
        "OpCall", "Free 0", "OpCall", "OpCall", "Alloc", "OpCall", "Alloc", "Alloc", "Free 12",
        "OpCall", "Free 10", "Free 11",
    ]  # fmt: skip

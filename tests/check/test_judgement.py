"""A judgement names what got worse, by how much and where; the tool's doing is no regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import neusight
from check_results import BEFORE
from neusight.integrations.check.baseline import (
    Case,
    CompileRow,
    OperatorTimeRow,
    OpRow,
    WaitRow,
)
from neusight.integrations.check.figures.batch_change import BatchChange
from neusight.integrations.check.figures.kept_recording import recording_of, text_of_recording
from neusight.integrations.check.judgement import Judgement, NewStop, NewWait, judge
from neusight.integrations.check.observation import Observation, Wait, observe

HERE = Path(__file__)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(x))
        down: torch.Tensor = self.down(hidden)
        return x + down


class Net(nn.Module):
    def __init__(self, hidden: tuple[int, ...], *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.blocks = nn.ModuleList(Block(1024, size) for size in hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if not self.checkpointed else checkpoint(block, x, use_reentrant=False)
        return x


class NeedlessGelus(Net):
    """Three needless kernels, before all others: behind the last they would save the copies that
    the gradient of a sum needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.gelu(F.gelu(F.gelu(x))))


class Renamed(Net):
    """The same work under another name."""


def train(
    hidden: tuple[int, ...] = (4096,) * 4,
    *,
    kind: type[Net] = Net,
    checkpointed: bool = False,
    reads_loss: bool = False,
    rows: int = 8192,
) -> None:
    model = kind(hidden, checkpointed=checkpointed).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(rows, 1024, device="cuda", dtype=torch.bfloat16)).sum()
        if reads_loss:
            print("loss", loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def seen(program: Callable[[], None] = train, gpu: str = "H100", **options: str) -> Observation:
    with neusight.forecast_on(gpu, with_stack=True) as forecast:
        program()
    return observe(forecast, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def before() -> Case:
    return seen().case


def judged(before: Case, program: Callable[[], None]) -> Judgement:
    return judge("train", before, seen(program))


def line_of(text: str) -> int:
    lines = HERE.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def is_at(place: str, text: str) -> bool:
    """Whether "file.py:12" is the line with this text."""
    return place.endswith(f"{HERE.name}:{line_of(text)}")


def status(judgement: Judgement, name: str) -> str:
    return next(change.status for change in judgement.metrics if change.name == name)


# -- what is no regression


def test_an_unchanged_program_passes(before: Case) -> None:
    judgement = judged(before, train)

    assert judgement.is_unchanged
    assert not judgement.is_regression
    assert (judgement.time_causes, judgement.memory_causes, judgement.notes) == ((), (), ())


def test_a_refactoring_that_renames_modules_passes_unchanged(before: Case) -> None:
    judgement = judged(before, lambda: train(kind=Renamed))

    assert judgement.is_unchanged
    assert (judgement.time_causes, judgement.memory_causes) == ((), ())
    assert "modules were renamed" in judgement.notes[0]


def test_less_work_is_better_not_worse(before: Case) -> None:
    judgement = judged(before, lambda: train((4096, 4096, 4096, 2048)))

    assert judgement.is_improved
    assert not judgement.is_regression


# -- regressions, and where


def test_one_percent_more_time_is_found_in_the_right_module(before: Case) -> None:
    def program() -> None:
        train(kind=NeedlessGelus)

    judgement = judged(before, program)

    latency = judgement.metrics[0]
    assert 0.007 < latency.after / latency.before - 1 < 0.015
    assert latency.status == "worse"
    added = [cause.amount for cause in judgement.time_causes if cause.module == "NeedlessGelus"]
    assert sum(added) >= 0.85 * (latency.after - latency.before)  # the rest: gaps between kernels
    assert is_at(judgement.time_stack[0], "F.gelu(F.gelu(F.gelu(x")


def test_operators_are_compared_where_both_cases_have_them(before: Case) -> None:
    def observed(program: Callable[[], None]) -> Observation:
        with neusight.forecast_on("H100", with_stack=True) as forecast:
            program()
        return observe(forecast, with_operators=True)

    was = observed(train)
    now = observed(partial(train, (4096, 4096, 4096, 4224)))

    changes = {
        row.operator: row.now_us - row.before_us
        for row in judge("", was.case, now).operator_changes
    }
    busy = now.case.metrics["gpu_busy_us"] - was.case.metrics["gpu_busy_us"]
    assert changes["aten::linear"] == pytest.approx(changes["aten::addmm"])
    assert 0 < changes["aten::linear"] < changes["aten::linear"] + changes["AddmmBackward0"] < busy
    assert "aten::ones" not in changes
    assert judge("", before, now).operator_changes == ()


def test_one_megabyte_more_is_found_in_the_right_module(before: Case) -> None:
    # 64 more columns over 8192 rows in bf16 are 1 MiB for each of two activations.
    judgement = judged(before, lambda: train((4096, 4096 + 64, 4096, 4096)))

    assert status(judgement, "peak_memory_bytes") == "worse"
    causes = [cause for cause in judgement.memory_causes if cause.module != "(allocator)"]
    named = {cause.module for cause in causes if cause.amount >= 2**20}
    assert named == {"Net.blocks.1.up", "Net.blocks.1"}
    [up] = [cause for cause in judgement.memory_causes if cause.module == "Net.blocks.1.up"]
    assert up.amount == 2**20
    assert is_at(up.stack[0], "hidden = F.gelu")


def test_equal_changes_in_equal_layers_are_reported_once(before: Case) -> None:
    judgement = judged(before, lambda: train((5120,) * 4))

    modules = {cause.module for cause in judgement.time_causes}
    assert {"Net.blocks.[0-3].up", "Net.blocks.[0-3].down", "Net.blocks.[0-3]"} <= modules
    [up] = [
        cause
        for cause in judgement.time_causes
        if (cause.module, cause.phase) == ("Net.blocks.[0-3].up", "forward")
    ]
    assert (up.was, up.now) == ("gemm 8192x4096x1024 bf16", "gemm 8192x5120x1024 bf16")
    assert ("gelu 41943040 bf16", 4) in judgement.new_kernels
    assert ("gelu 33554432 bf16", 4) in judgement.gone_kernels


def test_a_new_wait_is_named_with_its_line_and_its_cost(before: Case) -> None:
    judgement = judged(before, lambda: train(reads_loss=True))

    [wait] = judgement.new_waits
    assert status(judgement, "num_synchronizations") == "worse"
    assert (wait.reason, wait.code) == ("item", 'print("loss", loss.item())')
    assert is_at(wait.stack[0], 'print("loss", loss.item())')
    latency = judgement.metrics[0]
    assert 0 < wait.cost_us <= latency.after - latency.before + 10


def test_a_dropped_checkpoint_is_found_at_the_line_that_calls_the_blocks() -> None:
    with_checkpoint = seen(lambda: train(checkpointed=True)).case

    judgement = judged(with_checkpoint, train)

    assert status(judgement, "peak_memory_bytes") == "worse"
    assert status(judgement, "step_latency_us") == "better"
    assert is_at(judgement.memory_stack[0], "x = block(x) if")
    assert judgement.memory_causes[0].module.startswith("Net.blocks.[")


def test_causes_add_up_to_the_change(before: Case) -> None:
    judgement = judged(before, lambda: train((5120, 4096, 4096, 4096)))
    by_name = {change.name: change for change in judgement.metrics}

    memory, busy = by_name["peak_memory_bytes"], by_name["gpu_busy_us"]
    assert sum(c.amount for c in judgement.memory_causes) == memory.after - memory.before
    assert sum(c.amount for c in judgement.time_causes) == pytest.approx(busy.after - busy.before)


def test_an_equal_call_more_is_found_at_the_later_of_the_two_places() -> None:
    def once() -> None:
        x = torch.ones(512, 512, device="cuda")
        x = x @ x
        torch.cuda.synchronize()

    def twice() -> None:
        x = torch.ones(512, 512, device="cuda")
        y = x @ x
        y = y @ x  # the new one
        torch.cuda.synchronize()

    judgement = judged(seen(once).case, twice)

    [cause] = judgement.time_causes
    assert is_at(cause.stack[0], "y = y @ x  # the new one")
    assert is_at(cause.elsewhere[0][0], "        y = x @ x")


# -- the tool's doing


def with_prices(case: Case, factor: float, op: str = "", recording: str = "") -> Case:
    """The case as another version of the tool would have forecast it, `recording` kept."""

    def dearer(row: OpRow) -> OpRow:
        return row._replace(kernel_ns=round(row.kernel_ns * factor)) if op in row.op else row

    ops = tuple(map(dearer, case.ops))
    change = sum(row.kernel_ns for row in ops) / sum(row.kernel_ns for row in case.ops)
    times = {name: case.metrics[name] * change for name in ("step_latency_us", "gpu_busy_us")}
    return replace(
        case,
        ops=ops,
        metrics={**case.metrics, **times},
        tool={**case.tool, "neusight": "0.0.1"},
        recording=recording,
    )


def test_other_prices_for_the_same_work_are_no_regression(before: Case) -> None:
    judgement = judged(with_prices(before, 0.8), train)

    assert not judgement.is_regression
    assert judgement.is_moved_by_tool
    assert status(judgement, "step_latency_us") == "tool"
    assert judgement.tool_changes == (f"neusight 0.0.1 → {before.tool['neusight']}",)
    op, share = judgement.price_changes[0]
    assert op == "aten::mm"
    assert share == pytest.approx(0.25, abs=1e-4)


def test_a_regression_is_found_beside_other_prices(before: Case) -> None:
    judgement = judged(with_prices(before, 0.8), lambda: train((5120,) * 4))

    latency = judgement.metrics[0]
    assert judgement.is_regression
    assert latency.by_program == pytest.approx(
        latency.after - before.metrics["step_latency_us"], rel=0.02
    )


def test_nothing_is_better_and_no_line_blamed_while_the_tool_differs(before: Case) -> None:
    for prices, hidden in ((1.3, (4096, 4096, 4096, 2048)), (0.8, (5120,) * 4)):
        judgement = judged(with_prices(before, prices), partial(train, hidden))

        assert not judgement.is_improved
        assert (judgement.time_causes, judgement.memory_causes) == ((), ())
        assert "neusight compare --git BASE..HEAD" in judgement.notes[0]


def test_a_kept_recording_is_priced_again_so_that_code_is_compared_with_code(before: Case) -> None:
    older = with_prices(before, 1.25, recording=before.recording)

    slower = judged(older, partial(train, (5120,) * 4))
    faster = judged(older, partial(train, (4096, 4096, 4096, 2048)))

    same_tool = judged(before, partial(train, (5120,) * 4))
    assert slower.metrics == same_tool.metrics
    assert slower.is_regression
    assert slower.time_causes == same_tool.time_causes
    assert faster.is_improved
    was, now = (case.metrics["step_latency_us"] / 1e3 for case in (older, before))
    assert was > now
    assert slower.tool_effect == slower.notes[0]
    assert slower.notes[0].startswith("neusight itself changed this forecast by -20.0 %: ")
    assert "recorded by the older version" in slower.notes[1]
    same_prices = judged(replace(older, metrics=before.metrics), partial(train, (5120,) * 4))
    assert same_prices.tool_effect == ""
    assert "recorded by the older version" in same_prices.notes[0]


def test_a_recording_keeps_its_bytes_and_no_path(before: Case) -> None:
    recording = recording_of(before.recording)

    assert seen().case.recording == before.recording
    assert text_of_recording(recording) == before.recording
    assert str(HERE.parent) not in repr(recording)


@pytest.mark.parametrize("recording", ["!", "AAAA", "H4sIAAAAAAACA6uuBQBDv6ajAgAAAA=="])
def test_a_recording_that_cannot_be_read_leaves_an_estimate(before: Case, recording: str) -> None:
    judgement = judged(with_prices(before, 0.8, recording=recording), partial(train, (5120,) * 4))

    assert judgement.notes[0].startswith("the baseline's recording cannot be priced again: ")
    assert "neusight compare --git BASE..HEAD" in judgement.notes[1]
    assert judgement.time_causes == ()


def test_another_torch_is_not_priced_again(before: Case) -> None:
    older = replace(before, tool={**before.tool, "torch": "2.12.0"})

    judgement = judged(older, partial(train, (5120,) * 4))

    assert judgement.time_causes == ()
    assert "neusight compare --git BASE..HEAD" in judgement.notes[0]


def with_batch(case: Case, samples: int, source: str) -> Case:
    return replace(case, metrics={**case.metrics, "samples_per_step": samples}, batch_source=source)


@pytest.mark.parametrize("source", ["loader", ""])
def test_batches_known_by_other_means_are_not_judged_per_sample(source: str) -> None:
    now = seen(lambda: train(rows=4096))
    was = with_batch(seen().case, 8, "input")

    other = judge("train", was, replace(now, case=with_batch(now.case, 4, source)))
    same = judge("train", was, replace(now, case=with_batch(now.case, 4, "input")))

    assert (other.batch, same.batch) == (None, BatchChange("sample", 8, 4))
    assert not any(change.per for change in other.metrics)
    assert "the batch is known by other means" in other.notes[0]


def test_a_batch_that_the_flops_contradict_is_not_judged_per_sample() -> None:
    now = seen()
    was = with_batch(now.case, 8, "input")

    judgement = judge("train", was, replace(now, case=with_batch(now.case, 2048, "input")))

    assert judgement.batch is None
    assert status(judgement, "step_latency_us") == "same"


def test_lower_prices_do_not_hide_a_regression(before: Case) -> None:
    judgement = judged(with_prices(before, 2.0), lambda: train((5120,) * 4))

    assert judgement.metrics[0].after < judgement.metrics[0].before
    assert status(judgement, "step_latency_us") == "worse"


def test_a_changed_price_of_a_program_whose_tool_is_the_same_is_the_programs(before: Case) -> None:
    cheaper = replace(with_prices(before, 0.8), tool=before.tool)

    assert judged(cheaper, train).is_regression


def test_other_ops_of_an_unchanged_program_are_torchs() -> None:
    now = seen(lambda: train(kind=Renamed, hidden=(5120,) * 4), files="same")
    older = replace(seen(files="same").case, tool={**now.case.tool, "torch": "2.12.0"})

    judgement = judge("train", older, now)

    assert not judgement.is_regression
    assert judgement.is_moved_by_tool
    assert judgement.tool_changes == (f"torch 2.12.0 → {now.case.tool['torch']}",)
    assert not any(change.by_program for change in judgement.metrics)


def test_figures_edited_by_hand_are_judged_and_the_rows_are_doubted(before: Case) -> None:
    edited = replace(before, metrics={**before.metrics, "num_kernels": 1})

    judgement = judged(edited, train)

    assert status(judgement, "num_kernels") == "worse"
    assert "do not add up" in judgement.notes[0]


# -- rows paired off by hand


def paired(before: dict[str, Any], now: dict[str, Any], **seen: Any) -> Judgement:
    """A case of these rows against another one; figures are the same unless given."""
    known: dict[str, Any] = {"op_stacks": {}, "memory_stacks": {}, "waits": {}, "made": {}}
    after = Observation(replace(BEFORE, **now), **{**known, **seen})
    return judge("train", replace(BEFORE, **before), after)


def test_lines_that_wait_more_often_are_new_and_those_that_wait_less_are_gone() -> None:
    before = (WaitRow("item", "a", 2), WaitRow("item", "b", 1), WaitRow("copy", "c", 1))
    now = (
        WaitRow("item", "a", 5), WaitRow("item", "d", 1), WaitRow("item", "e", 1),
        WaitRow("copy", "moved", 1),
    )  # fmt: skip
    waits = {("item", "d"): Wait(("t.py:1",), 9.0), ("item", "a"): Wait((), 3.0)}

    found = paired({"waits": before}, {"waits": now}, waits=waits)

    assert found.new_waits == (
        NewWait("item", "d", 1, 9.0, ("t.py:1",)),
        NewWait("item", "a", 3, 3.0, ()),
        NewWait("item", "e", 1, 0.0, ()),
    )
    assert found.gone_waits == ("item: b", "copy: c")
    assert paired({"waits": before}, {"waits": before}).gone_waits == ()


def test_stops_that_came_more_often_are_new_where_the_baseline_knows_of_any() -> None:
    metrics = {**BEFORE.metrics, "num_graph_breaks": 1, "num_recompiles": 1}
    before = (CompileRow("graph break", "print", "a", 1), CompileRow("recompile", "size", "f", 1))
    now = (
        CompileRow("graph break", "print", "a", 3), CompileRow("graph break", "item", "b", 1),
        CompileRow("recompile", "dtype", "f", 1),
    )  # fmt: skip

    def stops(metrics: dict[str, float]) -> tuple[NewStop, ...]:
        return paired(
            {"metrics": metrics, "compiling": before},
            {"metrics": metrics, "compiling": now},
            stops={("graph break", "item", "b"): "t.py:2"},
        ).new_stops

    assert stops(metrics) == (
        NewStop("graph break", "print", "a", 2, ""),
        NewStop("graph break", "item", "b", 1, "t.py:2"),
    )
    assert stops(dict(BEFORE.metrics)) == ()


def test_operators_whose_time_differs_most_come_first() -> None:
    was = tuple(OperatorTimeRow(name, 1, ns) for name, ns in (("a", 5000), ("b", 1000), ("c", 7)))
    now = tuple(OperatorTimeRow(name, 1, ns) for name, ns in (("a", 5500), ("d", 3000), ("c", 7)))

    found = paired({"operators": was}, {"operators": now})

    assert found.operator_changes == (("d", 0.0, 3.0), ("b", 1.0, 0.0), ("a", 5.0, 5.5))
    assert paired({}, {"operators": now}).operator_changes == ()


def test_kernels_of_another_work_and_a_peak_elsewhere_are_named() -> None:
    def row(work: str, ops: int, kernels: int) -> OpRow:
        return OpRow("Net", "forward", "aten::mm", work, work, ops, kernels, 100, 10)

    found = paired(
        {"ops": (row("gemm 8", 2, 2), row("view", 5, 0)), "peak": "mm in Net"},
        {"ops": (row("gemm 9", 3, 6), row("other view", 5, 0)), "peak": "add in Net"},
    )

    assert (found.new_kernels, found.gone_kernels) == ((("gemm 9", 3),), (("gemm 8", 2),))
    assert found.peak_moved == ("mm in Net", "add in Net")
    assert paired({}, {}).peak_moved is None


def test_of_a_host_bound_step_the_causes_that_cost_the_host_most_come_first() -> None:
    def row(op: str, ns: int, host_ns: int) -> OpRow:
        return OpRow("Net", "forward", op, op, "1", 1, 1, ns, host_ns)

    now = {"ops": (row("mm", 9000, 1000), row("add", 1000, 9000))}

    assert [cause.op for cause in paired({"ops": ()}, now).time_causes] == ["mm", "add"]
    for was, has in (("host", "compute"), ("compute", "host")):
        found = paired({"ops": (), "bound": was}, {**now, "bound": has})
        assert [cause.op for cause in found.time_causes] == ["add", "mm"]


RATES = {"samples_per_step": 8, "samples_per_second": 8000.0}
COMPILED = {"num_graph_breaks": 0, "num_recompiles": 0, "num_graphs": 2, "num_fused_kernels": 5}


@pytest.mark.parametrize(
    ("before", "now", "note"),
    [
        ({"flops": 1}, {"flops": 2}, "the batch of a step is not known, so another batch would be"),
        ({"flops": 1}, {"flops": 1}, ""),
        ({"flops": 1}, {"flops": 2, **RATES}, "the batch is known by other means (not said, now n"),
        (COMPILED, {**COMPILED, "num_graphs": 3}, "torch.compile: compiled graphs 2 → 3"),
        (COMPILED, {**COMPILED, "num_recompiles": 3}, ""),
        ({}, COMPILED, "the baseline knows of no graph breaks and recompiles"),
        (COMPILED, {}, "torch.compile compiles nothing of it any more"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_noted(
    before: dict[str, float], now: dict[str, float], note: str
) -> None:
    rows: dict[str, Any] = {"ops": (), "memory": ()}
    zeros = {"num_kernels": 0, "peak_memory_bytes": 0, "num_synchronizations": 0}

    found = paired(
        {**rows, "metrics": {**BEFORE.metrics, **zeros, **before}},
        {**rows, "metrics": {**BEFORE.metrics, **zeros, **now}},
    )

    assert [text[: len(note)] for text in found.notes] == ([note] if note else [])

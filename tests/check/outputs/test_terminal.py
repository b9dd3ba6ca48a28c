"""The terminal: a line for each case, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from check_results import BEFORE, project, regression, slower
from neusight.integrations.check.baseline import Case, OperatorTimeRow
from neusight.integrations.check.causes import Cause
from neusight.integrations.check.figures.batch_change import intake_figures
from neusight.integrations.check.figures.change import MetricChange
from neusight.integrations.check.judgement import Judgement, NewStop, NewWait, OperatorChange, judge
from neusight.integrations.check.outputs.terminal import explanation, figure_lines, text_of
from neusight.integrations.check.result import CaseResult
from neusight.recording.recording import Batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_an_unchanged_case_is_one_line(folder: Path) -> None:
    seen = replace(slower(), case=BEFORE)
    result = CaseResult("train", "ok", judge("train", BEFORE, seen), BEFORE)

    text = text_of(result, folder)

    assert text == "train: ok, same as the baseline, 1 ms a step, 1.00 GiB at the peak"


def test_a_regression_says_what_by_how_much_and_where(folder: Path) -> None:
    text = text_of(regression(), folder)

    assert text.startswith("train: REGRESSION, 1.5 ms a step, 2.00 GiB at the peak")
    for words in (
        "step latency 1 ms 1.5 ms +50.00% 0.5 % WORSE",
        "+450 µs Net.0: aten::addmm (gemm 8x8x8 bf16 → gemm 8x16x8 bf16)",
        "model.py:2 self.up(x)",
        "made at model.py:1 self.up = nn.Linear(8, 16)",
        "+1.00 GiB Net.0: aten::addmm (activation)",
        "new synchronization (item, 1 a step): the step is 40 µs longer for it",
        "train.py:1 loss.item()",
        "new kernels: 1 x gemm 8x16x8 bf16",
        "note: priced by bytes over bandwidth, as fallback: my::op",
    ):
        assert words in " ".join(text.split())


def test_a_figure_that_falls_to_nothing_is_shown_and_one_that_is_nothing_is_not() -> None:
    judgement = judge("train", BEFORE, slower())
    gone = judgement.metrics[0]._replace(title="gone", before=3.0, after=0.0)
    none = gone._replace(title="none", before=0.0)

    _, *lines = figure_lines(replace(judgement, metrics=(gone, none)), ("before", "now"))

    assert [line.split()[0] for line in lines] == ["gone"]


def test_operators_are_named_with_their_kernel_time_before_and_now(folder: Path) -> None:
    before = replace(BEFORE, operators=(OperatorTimeRow("aten::linear", 2, 900_000),))
    seen = slower()
    now = replace(seen.case, operators=(OperatorTimeRow("aten::linear", 2, 1_350_000),))

    lines = explanation(judge("train.py", before, replace(seen, case=now)), folder)

    assert lines[lines.index("  kernel time in operators, those that they call included:") + 1] == (
        "        +450 µs  aten::linear: 900 µs → 1.35 ms"
    )


def test_quietly_every_case_is_one_line(folder: Path) -> None:
    assert "\n" not in text_of(regression(), folder, quiet=True)


def test_a_failure_says_why(folder: Path) -> None:
    text = text_of(CaseResult("train", "failed", failure="ValueError: no"), folder)

    assert text == "train: FAILED: ValueError: no"


def test_a_place_without_a_file_is_named_without_code(tmp_path: Path) -> None:
    judgement = regression().judgement
    assert judgement is not None

    assert any(line.strip() == "model.py:2" for line in explanation(judgement, tmp_path))


def test_another_batch_is_reported_first_and_judged_by_the_sample(folder: Path) -> None:
    def of_batch(case: Case, samples: int, latency_us: float) -> Case:
        known = intake_figures(Batch(samples=samples), latency_us)
        metrics = {**case.metrics, "step_latency_us": latency_us, **known}
        return replace(case, metrics=metrics, batch_source="input")

    before = of_batch(BEFORE, 8, 1000.0)
    seen = slower()
    judgement = judge("train", before, replace(seen, case=of_batch(seen.case, 16, 1600.0)))
    result = CaseResult("train", "better", judgement, judgement.case)

    first, reported, *lines = text_of(result, folder).splitlines()

    assert first.endswith("1.6 ms a step, 10,000 samples/s, 2.00 GiB at the peak, "
                          "batch 8 → 16, judged per sample")  # fmt: skip
    assert reported == "  batch 8 → 16: judged per sample: 125 µs → 100 µs a sample, better"
    assert "  latency a sample             125 µs       100 µs    -20.00%  0.5 %  better" in lines
    assert "  throughput, samples/s         8,000       10,000    +25.00%  0.5 %  better" in lines


def cause(module: str, amount: float, *, host: float = 0.0, **fields: Any) -> Cause:
    stack = fields.pop("stack", ("model.py:2", "train.py:1"))
    was, now = fields.pop("was", ""), fields.pop("now", "gemm 8")
    return Cause(module, "forward", "aten::mm", was, now, amount, host, 1, stack, **fields)


#: All that can differ at once, a little more of each than is shown.
EVERYTHING = Judgement(
    "train",
    BEFORE,
    metrics=(
        MetricChange("step_latency_us", "step latency", "us", 1000.0, 1500.0, 100.0, 5.0, "0.5 %",
                     "worse"),
        MetricChange("flops", "FLOPs", "flops", 1e12, 1.0004e12, 0.0, 5e9, "0.5 %", "within"),
        MetricChange("num_kernels", "kernels", "", 2, 3, 1.0, 0.0, "0", "tool"),
        MetricChange("gpu_busy_us", "GPU busy time", "us", 900.0, 900.0, 1.0, 4.5, "0.5 %", "same"),
        MetricChange("peak_memory_bytes", "peak memory", "bytes", 0.0, 2**30, 0.0, 0.0, "0.5 MiB",
                     "better"),
    ),
    time_causes=(
        cause("Net.0", 500.0, host=3.0, was="gemm 4", made=("model.py:1",)),
        cause("Net.0", -100.0, now="", was="norm 8"),
        cause("Net.1", 300.0, elsewhere=(("train.py:1",), ("model.py:2",))),
        cause("", 200.0, now="gemm 4", was="gemm 4", stack=()),
        *(cause(f"Net.{n}", 100.0 - n) for n in (3, 4, 5)),
        cause("Net.6", -50.0),
        cause("Net.7", 40.0),
        cause("Net.host", 0.0, host=9.0),
    ),
    memory_causes=(
        cause("Net.0", 2**30, now="activation", stack=("train.py:1",)),
        cause("Net.1", 2**21, now="slack"),
    ),
    time_stack=("model.py:2", "train.py:1"),
    memory_stack=("model.py:1",),
    new_waits=(NewWait("item", "loss", 2, 40.0, ()),),
    gone_waits=("not shown",),
    new_stops=(
        NewStop("graph break", "print", "print(x)", 1, ""),
        NewStop("recompile", "size", "f(x)", 2, "model.py:2"),
    ),
    new_kernels=(("gemm 8", 1), ("norm 8", 4), ("copy 8", 1), ("add 8", 1)),
    gone_kernels=(("gemm 4", 3),),
    operator_changes=tuple(OperatorChange(f"aten::op{n}", 10.0 * n, 100.0) for n in range(9)),
    peak_moved=("aten::mm in Net", "aten::add in Net"),
    tool_changes=("torch 2.12 → 2.13",),
    price_changes=(("mm", 0.5), ("add", -0.25), ("sum", 0.1), ("copy", 0.1)),
    notes=("unmapped: my::op",),
)  # fmt: skip


EVERYTHING_TEXT = """\
                             baseline          now     change  tolerated
  step latency                   1 ms       1.5 ms    +50.00%  0.5 %  WORSE
  FLOPs                       1 TFLOP      1 TFLOP +400 MFLOP  0.5 %
  kernels                           2            3         +1  0  (tool)
  GPU busy time                900 µs       900 µs       same  0.5 %
  peak memory                     0 B     1.00 GiB  +1.00 GiB  0.5 MiB  better
  the tool is another one: torch 2.12 → 2.13
    mm, called as before, is forecast +50.0%
    add, called as before, is forecast -25.0%
    sum, called as before, is forecast +10.0%
    step latency: +100 µs by the tool, +400 µs by the program
  kernel time: +1.178 ms, +12 µs on the host
        +400 µs  Net.0: aten::mm (gemm 4 → gemm 8) and 1 more op
                 model.py:2  self.up(x)
                 made at model.py:1  self.up = nn.Linear(8, 16)
        +300 µs  Net.1: new aten::mm (gemm 8)
                 model.py:2  self.up(x)
                 the same is called at train.py:1
        +200 µs  (no module, forward): aten::mm (gemm 4)
         +97 µs  Net.3: new aten::mm (gemm 8)
                 model.py:2  self.up(x)
         +96 µs  Net.4: new aten::mm (gemm 8)
                 model.py:2  self.up(x)
         +95 µs  Net.5: new aten::mm (gemm 8)
                 model.py:2  self.up(x)
         -10 µs  in 2 more modules
  memory at the peak: +1.00 GiB
      +1.00 GiB  Net.0: new aten::mm (activation)
                 train.py:1  loss.item()
      +2.00 MiB  in 1 more module
    most of it comes through model.py:1  self.up = nn.Linear(8, 16)
    the peak moved from aten::mm in Net to aten::add in Net
  new synchronization (item, 2 a step): the step is 40 µs longer for it
    loss
  new graph break: print
    print(x)
  new recompile (2 times): size
    model.py:2  self.up(x)
  new kernels: 4 x norm 8, 1 x add 8, 1 x copy 8 and 1 more
  gone kernels: 3 x gemm 4
  kernel time in operators, those that they call included:
        +100 µs  aten::op0: 0 µs → 100 µs
         +90 µs  aten::op1: 10 µs → 100 µs
         +80 µs  aten::op2: 20 µs → 100 µs
         +70 µs  aten::op3: 30 µs → 100 µs
         +60 µs  aten::op4: 40 µs → 100 µs
         +50 µs  aten::op5: 50 µs → 100 µs
         +40 µs  aten::op6: 60 µs → 100 µs
         +30 µs  aten::op7: 70 µs → 100 µs
    and 1 more operator
  note: unmapped: my::op"""


def test_everything_that_differs(folder: Path) -> None:
    assert "\n".join(explanation(EVERYTHING, folder)) == EVERYTHING_TEXT


def test_where_the_host_bounds_the_step_its_causes_are_shown_and_waits_that_are_gone(
    folder: Path,
) -> None:
    judgement = Judgement(
        "train",
        replace(BEFORE, bound="host"),
        metrics=(),
        time_causes=(cause("Net.0", 0.0, host=9.0, stack=()), cause("Net.1", 2.0, stack=())),
        gone_waits=("item: loss.item()",),
    )

    assert explanation(judgement, folder)[1:] == [
        "  kernel time: +2 µs, +9 µs on the host",
        "     +9 µs host  Net.0: new aten::mm (gemm 8)",
        "          +2 µs  Net.1: new aten::mm (gemm 8)",
        "  synchronization gone: item: loss.item()",
    ]


@pytest.mark.parametrize(("host", "words"), [(1.0, ", +1 µs on the host"), (0.9, "")])
def test_what_the_host_pays_is_said_from_a_microsecond_on(
    host: float, words: str, folder: Path
) -> None:
    causes = (cause("Net.1", 2.0, host=host, stack=()),)

    _, first, *_ = explanation(Judgement("train", BEFORE, (), causes), folder)

    assert first == f"  kernel time: +2 µs{words}"

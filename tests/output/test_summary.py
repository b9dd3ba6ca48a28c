"""The first screen and the JSON, of values written down by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from neusight.failure import FAILURE_OPTION, OUT_OF_MEMORY_OPTION
from neusight.memory.allocator_settings import AllocatorSettings
from neusight.memory.placement import MemoryEvent, MemoryTimeline, OutOfMemory, StepMemory
from neusight.output.figures import Row, StepLatency, Verdict
from neusight.output.summary import SummaryData, describe, headline, to_json
from neusight.recording.recording import STEP_OPTION, Alloc, Batch, Step
from timelines import ROUND_GPU, op, recording_of

MIB, GIB = 2**20, 2**30
WEIGHT = Alloc(0, 600 * MIB, "net", "aten::empty", kind="parameter")
ACTIVATION = Alloc(1, 1000 * MIB, "net.up", "aten::mm", stack=("train.py:7",))

VERDICT = Verdict(
    kind="train",
    step_latency=StepLatency(12_500.0, 11_000.0, 14_000.0),
    steps=[
        {"kind": "setup", "count": 1, "latency_us": 100.0},
        {"kind": "train", "count": 7, "latency_us": 12_500.0},
        {"kind": "eval", "count": 2, "latency_us": 900.0},
    ],
    latency_us=90_000.0,
    gpu_busy_us=9_000.0,
    host_us=12_000.0,
    bound="memory",
    coverage={"trained": 0.9, "physics": 0.1, "fallback": 0.0},
    flops=2 * 10**12,
    mfu=0.32,
    num_ops=40,
    num_kernels=50,
    num_synchronizations=1,
    num_steps=6,
    batch=Batch(8, 4096, "token ids [8 x 512] in net"),
    by_kernel_class=[Row("gemm", 30, 6_000.0, 2 / 3), Row("elementwise", 20, 3_000.0, 1 / 3)],
    by_module=[Row("net", 50, 9_000.0, 1.0)],
    by_op=[Row("aten::mm", 30, 6_000.0, 2 / 3)],
)
MEMORY = MemoryTimeline(
    events=(),
    steps=(StepMemory(0, "train", 1600 * MIB, 2 * GIB, 0), StepMemory(6, "train", 9, 9, 0)),
    peak_allocated=1600 * MIB,
    peak_reserved=2 * GIB,
    peak_event=MemoryEvent(1, 0, 1000 * MIB, 0, 1600 * MIB, 2 * GIB, ACTIVATION),
    alive_at_peak=(ACTIVATION, WEIGHT),
    capacity_bytes=9 * GIB,
    context_bytes=GIB,
    settings=AllocatorSettings(),
)
FINDINGS = SummaryData(
    recording=recording_of(
        Step("train", (op(),), 7),
        warnings=("values were invented",),
        options={STEP_OPTION: "an optimizer's step"},
    ),
    verdict=VERDICT,
    memory=MEMORY,
    fits=True,
    gpu=ROUND_GPU,
    predictor="roofline",
    host="plain",
)


def found(verdict: dict[str, Any] | None = None, **changes: Any) -> SummaryData:
    return replace(FINDINGS, verdict=replace(VERDICT, **(verdict or {})), **changes)


def failed(**options: str) -> SummaryData:
    recording = replace(FINDINGS.recording, options={FAILURE_OPTION: "ValueError: no", **options})
    return found(recording=recording)


def test_the_first_screen_states_verdict_time_memory_and_what_it_rests_on() -> None:
    text = describe(replace(FINDINGS, trace_path="runs/a.json"), changes=["  change", "  more"])

    assert text.splitlines() == [
        "Round: fits, 12.50 ms per training step (11.00 ms to 14.00 ms), memory-bound, "
        "327,680 tokens/s",
        "",
        "  where the time goes (9.00 ms of GPU time a step, 50 kernels, 40 ops, MFU 32.0%)",
        "    gemm                        6.00 ms  66.7%      30 kernels",
        "    elementwise                 3.00 ms  33.3%      20 kernels",
        "",
        "  memory    1.56 GiB allocated, 2.00 GiB reserved, 1.00 GiB context, of 10.00 GiB",
        "            in all 2.73 GiB to 3.40 GiB",
        "            peak at aten::mm in net.up, train.py:7",
        "            activations 1000.0 MiB, parameters 600.0 MiB",
        "  coverage  90% trained, 10% physics",
        "  setting   Round, host 'plain', torch 2.13, predictor 'roofline'",
        "  batch     8 samples, 4,096 tokens a step (token ids [8 x 512] in net)",
        "  step      an optimizer's step; 7 training, 2 inference, 1 setup",
        "  note      values were invented",
        "  change",
        "  more",
        "  trace     runs/a.json",
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("train", "training step"), ("eval", "inference step"), ("setup", "block")],
)
def test_the_headline_says_what_the_time_is_of(kind: str, words: str) -> None:
    verdict = replace(VERDICT, kind=kind, batch=Batch(), bound="host")

    assert headline(verdict) == f"12.50 ms per {words} (11.00 ms to 14.00 ms), host-bound"


def test_samples_a_second_are_reported_where_tokens_are_not_known() -> None:
    assert headline(replace(VERDICT, batch=Batch(samples=25))).endswith(", 2,000 samples/s")


def test_five_rows_of_classes_are_shown() -> None:
    rows = [Row(f"class{number}", 1, 1.0, 0.1) for number in range(7)]

    text = describe(found({"by_kernel_class": rows}))

    assert "class4" in text
    assert "class5" not in text


def test_the_host_is_named_where_the_verdict_hangs_on_it() -> None:
    assert "  host " not in describe(FINDINGS)
    assert (
        "  host      the profile 'plain' makes it host-bound: 12.00 ms of the host a step, "
        "9.00 ms of the GPU" in describe(found({"bound": "host"}))
    )


def test_five_unmapped_ops_are_named_and_that_there_are_more() -> None:
    names = tuple(f"my::op{number}" for number in range(6))

    assert "; 5 unmapped: my::op0, my::op1, my::op2, my::op3, my::op4\n" in describe(
        found(unmapped=names[:5])
    )
    assert "; 6 unmapped: my::op0, my::op1, my::op2, my::op3, my::op4, …" in describe(
        found(unmapped=names)
    )


def test_the_op_that_ran_out_of_memory_is_reported() -> None:
    failure = OutOfMemory(3, "aten::mm", "", "forward", 2 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, GIB)

    text = describe(found(memory=replace(MEMORY, out_of_memory=failure), fits=False))

    assert text.startswith("Round: does not fit, 12.50 ms")
    assert (
        "            out of memory in step 3 at aten::mm in (no module): 2.00 GiB more, with "
        "9.00 GiB allocated" in text
    )


def test_a_workspace_that_there_was_no_space_for_is_reported() -> None:
    assert (
        "            no space for 1.00 GiB of cuDNN's workspace: other kernels run, which may be "
        "slower\n" in describe(found(memory=replace(MEMORY, most_left_out=GIB)))
    )


def test_a_block_without_kernels_still_says_that_it_does_not_fit() -> None:
    failure = OutOfMemory(3, "aten::empty", "", "forward", 2 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, GIB)
    memory = replace(MEMORY, out_of_memory=failure)

    text = describe(found({"num_kernels": 0}, memory=memory, fits=False))

    assert text.startswith("Round: nothing to forecast, and does not fit\n  memory    ")
    assert "out of memory in step 3 at aten::empty" in text


def test_what_grows_with_each_step_is_reported_with_the_steps_that_still_fit() -> None:
    """Of 9 GiB the context takes 1, and a step 2 at its peak."""
    growing = StepMemory(6, "train", 2 * GIB, 2 * GIB, GIB, growth=GIB)
    memory = replace(MEMORY, steps=(growing,))
    failure = OutOfMemory(7, "aten::mm", "", "forward", GIB, 8 * GIB, 8 * GIB, 9 * GIB, GIB)

    assert "            grows by 1.00 GiB with each step: about 6 more fit\n" in describe(
        found(memory=memory)
    )
    full = describe(found(memory=replace(memory, out_of_memory=failure), fits=False))
    assert "            grows by 1.00 GiB with each step\n" in full
    assert "grows by" not in describe(found())


def test_a_block_without_kernels_forecasts_nothing() -> None:
    text = describe(found({"num_kernels": 0}))

    assert text.splitlines() == [
        "Round: nothing to forecast",
        "  note      values were invented",
    ]


def test_a_program_that_failed_has_no_step_but_what_it_did_until_then() -> None:
    lines = describe(failed()).splitlines()

    assert lines[:3] == [
        "Round: the script failed",
        "  failure   ValueError: no",
        "  recorded  until then: 7 training, 2 inference, 1 setup, 90.00 ms in all",
    ]
    assert not any("where the time goes" in line for line in lines)


def test_a_program_that_failed_for_want_of_memory_says_so() -> None:
    out_of_memory = replace(failed(**{OUT_OF_MEMORY_OPTION: "yes"}), fits=False)

    assert describe(out_of_memory).startswith("Round: does not fit: the script ran out of memory")
    assert describe(replace(failed(), fits=False)).startswith(
        "Round: does not fit, and the script failed"
    )


def test_the_json_has_the_figures_as_they_are() -> None:
    document = json.loads(json.dumps(to_json(found(unmapped=("my::op",)))))

    assert document["gpu"] == "Round"
    assert (document["predictor"], document["host"]) == ("roofline", "plain")
    assert document["step_latency_us"] == {"median": 12500.0, "low": 11000.0, "high": 14000.0}
    assert (document["latency_us"], document["gpu_busy_us"]) == (90000.0, 9000.0)
    assert (document["flops_per_step"], document["mfu"]) == (2 * 10**12, 0.32)
    assert (document["num_ops"], document["num_kernels"]) == (40, 50)
    assert (document["samples_per_step"], document["tokens_per_step"]) == (8, 4096)
    assert document["unmapped"] == ["my::op"]
    assert document["step_is"] == "an optimizer's step"
    assert document["peak_memory_bytes"] == 1600 * MIB
    assert document["peak_reserved_bytes"] == 2 * GIB
    assert document["context_bytes"] == GIB
    assert document["memory_capacity_bytes"] == 10 * GIB
    assert document["memory"]["peak_at"] == {
        "step": 0, "op": "aten::mm", "module": "net.up", "phase": "forward", "line": "train.py:7"
    }  # fmt: skip
    assert document["memory"]["first_step_peak_bytes"] == 1600 * MIB
    assert document["memory"]["steady_step_peak_bytes"] == 9
    assert document["by_kernel_class"][0] == {
        "name": "gemm", "count": 30, "time_us": 6000.0, "share": 2 / 3
    }  # fmt: skip
    assert (document["fits"], document["failure"]) == (True, None)
    assert document["memory_verdict"] == "fits"
    assert document["memory"]["needed_bytes"] == 3 * GIB
    assert document["warnings"] == ["values were invented"]


def test_nobody_knows_whether_the_rest_of_a_script_that_failed_fits() -> None:
    assert to_json(failed())["fits"] is None
    assert to_json(replace(failed(), fits=False))["fits"] is False
    assert to_json(failed())["failure"] == "ValueError: no"


def test_what_a_failure_says_cannot_steer_the_terminal() -> None:
    recording = replace(FINDINGS.recording, options={FAILURE_OPTION: "ValueError: \x1b[2Jgone"})

    assert "\x1b" not in describe(found(recording=recording))


def test_what_is_too_close_to_call_is_said_so() -> None:
    near = replace(MEMORY, capacity_bytes=3 * GIB, fits_into=lambda capacity_bytes: False)

    assert describe(found(memory=near)).startswith("Round: close (may not fit), 12.50 ms")
    assert to_json(found(memory=near))["memory_verdict"] == "close"

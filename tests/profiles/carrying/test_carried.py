"""A profile carried over: to its own GPU as measured, to another as a forecast would have it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.profiles.carrying.carried import carry, source_of
from neusight.integrations.profiles.carrying.program import _moved
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.integrations.report.side_by_side import lay_side_by_side
from neusight.output.trace.file import trace_events
from neusight.predictors.errors import TraceError, UnknownGPUError, UnsupportedKernelError
from neusight.timeline.spans import HostSpan, Timeline
from places import TRACES, needs_traces
from profile_events import host_event, trace_of_events
from timelines import kernel_span, step_span

RESNET = TRACES / "v100__resnet50_train_worker0.1623143089861.pt.trace.json.gz"


def train(gpu: str) -> neusight.Forecast:
    with neusight.forecast_on(gpu, host="profiled") as forecast:
        model = nn.Sequential(
            nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(2048, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return forecast


@cache
def trace(gpu: str = "V100") -> dict[str, Any]:
    """The trace of a training program, as a profile would show it, were the forecast the truth."""
    return as_profiled(train(gpu))


def as_profiled(forecast: neusight.Forecast, **options: Any) -> dict[str, Any]:
    found = trace_events(forecast.timeline, forecast.memory, forecast.gpu, **options)
    return {key: value for key, value in found.items() if key != "neusight"}


def attend(gpu: str) -> neusight.Forecast:
    with neusight.forecast_on(gpu, host="profiled") as forecast:
        for _ in range(3):
            query = torch.randn(
                4, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True
            )
            nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    return forecast


def multiply_fp8() -> neusight.Forecast:
    with neusight.forecast_on("H100", host="profiled") as forecast:
        left = torch.empty(2048, 2048, device="cuda", dtype=torch.float8_e4m3fn)
        scale = torch.ones((), device="cuda")
        for _ in range(3):
            torch._scaled_mm(left, left.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
            torch.cuda.synchronize()
    return forecast


def profile(gpu: str = "V100", *, device: str | None = None) -> Profile:
    events = trace(gpu)
    if device is not None:
        events = copy.deepcopy(events)
        events["deviceProperties"][0]["name"] = device
    return read_profile_events(events, source="run.pt.trace.json", keep_arguments=True)


def test_on_its_own_gpu_a_profile_is_given_back_as_it_was_measured() -> None:
    read = profile()
    carried = carry(read, "V100").timeline
    assert [step.latency_ns for step in carried.steps] == [step.latency_ns for step in read.steps]
    assert [step.gpu_busy_ns for step in carried.steps] == [step.busy_ns for step in read.steps]
    assert [span.duration_ns for span in carried.kernels] == [
        event.duration_ns for step in read.steps for event in step.events
    ]


@pytest.mark.parametrize("target", ["A100", "T4", "H100"])
def test_on_another_gpu_kernels_take_what_a_forecast_there_says(target: str) -> None:
    carried, direct = carry(profile(), target), train(target)
    assert carried.verdict.gpu_busy_us == pytest.approx(direct.verdict.gpu_busy_us, rel=0.25)
    low, high = carried.step_latency_us.low, carried.step_latency_us.high
    assert low < carried.step_latency_us.median < high


def test_threads_of_the_program_have_lanes_beside_those_of_autograd() -> None:
    events = copy.deepcopy(trace())
    on_host = [event for event in events["traceEvents"] if event.get("pid") == 4000]
    drawn = next(event for event in on_host if event["name"] == "aten::randn")
    for event in on_host:
        if drawn["ts"] <= event["ts"] <= drawn["ts"] + drawn["dur"]:
            event["tid"] = 77

    carried = carry(read_profile_events(events, source="run", keep_arguments=True), "H100")

    lanes = {(span.name, span.thread) for span in carried.timeline.host}
    of_randn = {thread for name, thread in lanes if name == "aten::randn"}
    assert of_randn == {"main", "thread 1"}
    assert {thread for name, thread in lanes if name.endswith("Backward0")} == {"autograd"}
    assert ("aten::addmm", "main") in lanes


def test_a_faster_gpu_leaves_the_host_its_time() -> None:
    read = profile()
    carried = carry(read, "B200")
    assert carried.verdict.host_us == pytest.approx(read.steps[-1].host_ns / 1000, rel=0.3)
    assert carried.verdict.gpu_busy_us < read.steps[-1].busy_ns / 1000


def test_classes_modules_and_waits_are_those_of_the_program() -> None:
    carried = carry(profile(), "H100")
    classes = {row.name for row in carried.verdict.by_kernel_class}
    assert {"gemm", "normalization", "optimizer"} <= classes
    assert carried.verdict.kind == "train"
    assert carried.verdict.mfu > 0


def test_the_forecast_says_where_it_is_from() -> None:
    carried = carry(profile(), "H100")
    assert carried.recording.options["carried_from"].startswith("V100")
    assert "carried over from a profile of V100" in carried.summary()


def test_a_carried_forecast_is_written_as_a_trace_that_can_be_read_again(tmp_path: Path) -> None:
    carried = carry(profile(), "A100")
    carried.export_chrome_trace(tmp_path / "carried.json")
    from neusight.integrations.profiles.reading.reading import read_profile

    again = read_profile(tmp_path / "carried.json")
    assert [step.kernel_ns for step in again.steps] == pytest.approx(
        [sum(span.duration_ns for span in carried.timeline.kernels[s.first_kernel : s.last_kernel])
         for s in carried.timeline.steps], rel=1e-3)  # fmt: skip


def test_a_forecast_is_no_profile() -> None:
    forecast = train("V100")
    made = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    made["neusight"] = {"forecast": True}
    with pytest.raises(TraceError, match="is a forecast, not a profile"):
        carry(read_profile_events(made, keep_arguments=True), "A100")


def test_a_profile_without_kernels_is_refused() -> None:
    events = [host_event("cpu_op", "aten::add", 1)]
    with pytest.raises(TraceError, match="has no kernels"):
        carry(read_profile_events(trace_of_events(events, "Tesla T4")), "A100")


def test_a_profile_of_another_gpu_than_said_is_refused() -> None:
    with pytest.raises(TraceError, match=r"was taken on .*, not on T4"):
        carry(profile(), "A100", source="T4")


def test_memory_that_the_profile_does_not_state_is_not_said_to_fit() -> None:
    silent = read_profile_events(
        as_profiled(attend("H100"), profile_memory=False), keep_arguments=True
    )

    carried = carry(silent, "A100")

    assert carried.memory_verdict == "unknown"
    assert "fits" not in carried.summary()
    assert "memory    not known, of 79.25 GiB" in carried.summary()
    reported = carried.to_json()
    assert (reported["fits"], reported["memory_verdict"], reported["memory"]) == (
        None,
        "unknown",
        None,
    )
    assert reported["peak_memory_bytes"] is reported["peak_reserved_bytes"] is None
    compared = lay_side_by_side([carried], {"A100": 2.0})
    assert compared.rows[0].used_bytes is None
    assert "? of 79" in compared.table()


def test_memory_that_the_profile_states_is_what_is_judged() -> None:
    read = read_profile_events(as_profiled(attend("H100")), keep_arguments=True)

    carried = carry(read, "A100")

    assert read.peak_allocated_bytes is not None
    assert carried.memory_verdict == "fits"
    assert carried.peak_memory_bytes >= read.peak_allocated_bytes


def test_a_profile_without_shapes_is_carried_by_bytes_and_says_what_to_record() -> None:
    read = read_profile_events(
        as_profiled(attend("H100"), record_shapes=False), keep_arguments=True
    )

    carried = carry(read, "A100")

    assert carried.coverage["fallback"] == 1.0
    assert "record_shapes=True" in carried.summary()
    assert "100% of the kernel time" in carried.summary()


def test_a_kernel_that_does_not_exist_on_the_target_is_named() -> None:
    read = read_profile_events(as_profiled(multiply_fp8()), keep_arguments=True)

    with pytest.raises(
        UnsupportedKernelError, match=r"scaled_gemm in float8_e4m3fn.*V100.* has no fp8 unit"
    ):
        carry(read, "V100")


def test_8_bit_floats_of_another_kind_are_taken_for_the_targets_own() -> None:
    read = read_profile_events(as_profiled(multiply_fp8()), keep_arguments=True)

    carried = carry(read, "MI300X")

    assert "MI300X does not multiply float8_e4m3fn: taken for its own" in carried.summary()
    assert "does not multiply" not in carry(read, "H200").summary()


def test_between_vendors_products_take_what_is_forecast() -> None:
    carried, direct = carry(profile(), "MI300X"), train("MI300X")

    def products_us(forecast: neusight.Forecast) -> float:
        return next(row.time_us for row in forecast.verdict.by_kernel_class if row.name == "gemm")

    assert products_us(carried) == pytest.approx(products_us(direct), rel=0.02)
    assert "the kernels of MI300X are others" in carried.summary()


def test_a_driver_that_does_not_name_its_gpu_is_helped_by_its_figures() -> None:
    events = copy.deepcopy(trace())
    events["deviceProperties"][0] |= {
        "name": "AMD Radeon Graphics", "numSms": 104, "computeMajor": 9, "computeMinor": 0,
        "totalGlobalMem": 68702699520,
    }  # fmt: skip
    read = read_profile_events(events, source="run.json", keep_arguments=True)

    with pytest.raises(TraceError, match=r"it is MI210 or MI250\. Say which .*--from MI210"):
        carry(read, "MI300X")


def test_a_card_that_is_not_known_is_taken_for_its_model() -> None:
    read = profile(device="Tesla V100-DGXS-32GB")
    assert source_of(read, None).architecture == "Volta"
    assert "taken for V100" in carry(read, "A100").summary()


def test_a_gpu_that_nobody_knows_has_to_be_said() -> None:
    read = profile(device="Quux 9000")
    with pytest.raises(TraceError, match=r"Quux 9000.*--from V100-PCIE-32GB"):
        carry(read, "A100")
    assert carry(read, "A100", source="V100").verdict.num_kernels


def test_an_unknown_target_is_refused_before_anything_is_done() -> None:
    with pytest.raises(UnknownGPUError):
        carry(profile(), "H999")


@needs_traces
@pytest.mark.slow
def test_a_real_profile_of_an_older_torch_is_carried_by_prices_nearly_whole() -> None:
    carried = carry(RESNET, "A100")
    assert carried.verdict.mfu > 0.1
    assert carried.verdict.by_kernel_class[0].name == "convolution"
    assert carried.verdict.coverage["fallback"] < 0.08


@needs_traces
@pytest.mark.slow
def test_a_profile_of_one_vendor_gives_what_the_other_measured() -> None:
    """ViT-base, 4 images: 1.69 ms of kernels on MI300X in data/profiled_kernels."""
    carried = carry(TRACES / "h100__Falconsai_nsfw_image_detection__1016002.json.gz", "MI300X")
    assert carried.verdict.gpu_busy_us == pytest.approx(1690.0, rel=0.1)


@needs_traces
def test_a_profile_that_torch_wrote_on_rocm_is_given_back_on_its_own_gpu() -> None:
    path = TRACES / "amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    carried = carry(path, "MI250", source="MI250")
    assert carried.verdict.gpu_busy_us == pytest.approx(149.0, rel=0.01)
    assert carried.memory_verdict == "unknown"


def test_a_timeline_that_is_moved_keeps_all_its_distances() -> None:
    step = replace(step_span(), start_ns=10, end_ns=20, done_ns=30)
    host, kernel = HostSpan("op", "mm", 12, 5), kernel_span()._replace(start_ns=15)
    before = Timeline((host,), (kernel,), (step,), 40, (11, 13))

    assert _moved(before, 100) == Timeline(
        (host._replace(start_ns=112),),
        (kernel._replace(start_ns=115),),
        (replace(step, start_ns=110, end_ns=120, done_ns=130),),
        140,
        (111, 113),
    )

"""Forecast against profile: pairs, shares, words, and three public profiles."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neusight
from neusight.integrations.cli.main import main
from neusight.integrations.profiles.aliases import class_of_name
from neusight.integrations.profiles.comparison.comparability import (
    differences,
    differences_by_class,
)
from neusight.integrations.profiles.comparison.comparison import Comparison, compare
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.output.names.kernel import kernel_display_name
from neusight.predictors.errors import TraceError
from neusight.predictors.kernel import KernelClass
from places import ROOT, TRACES, needs_traces
from profile_events import device_event, host_event, trace_of_events

EXAMPLE = ROOT / "examples" / "compare_with_profile.py"

#: An operator call of a made trace: name, shapes, and its kernels with their microseconds.
Call = tuple[str, list[list[int]], list[tuple[str, float]]]

GEMM: Call = ("aten::addmm", [[32], [64, 16], [16, 32]], [("volta_sgemm_64x64_tn", 20.0)])
RELU: Call = (
    "aten::clamp_min",
    [[64, 32]],
    [("void at::native::vectorized_elementwise_kernel<4, clamp>", 4.0)],
)


def trace_of(calls: list[Call], *, gap_us: float = 1.0, forecast: bool = False) -> dict[str, Any]:
    """One step in which kernel follows kernel; launches run ahead, or wait where gaps are long."""
    events: list[dict[str, Any]] = []
    time_us, host_us, number = 50.0, 1.0, 0
    for name, shapes, kernels in calls:
        number += 1
        external = number
        begin = host_us
        for kernel, duration in kernels:
            number += 1
            launch = host_us if gap_us < 5 else time_us - 2
            host_us += 0.01
            ids: dict[str, Any] = {"correlation": number, "External id": external}
            events.append(host_event("cuda_runtime", "cudaLaunchKernel", launch, 0.01, **ids))
            events.append(device_event(kernel, time_us, duration, **ids))
            time_us += duration + gap_us
        op: dict[str, Any] = {"External id": external, "Input Dims": shapes}
        events.append(host_event("cpu_op", name, begin, max(0.01, host_us - begin), **op))
    start_us = 45.0 if gap_us < 5 else 0.0
    events.append(host_event("user_annotation", "ProfilerStep#1", start_us, time_us - 45.0))
    for event in events:  # launches lie in the step
        if gap_us < 5 and event["cat"] in ("cpu_op", "cuda_runtime"):
            event["ts"] += 45.0
    return trace_of_events(events) | ({"neusight": {"forecast": True}} if forecast else {})


def profile_of(calls: list[Call], **options: Any) -> Profile:
    return read_profile_events(trace_of(calls, **options))


def with_times(call: Call, factor: float) -> Call:
    name, shapes, kernels = call
    return name, shapes, [(kernel, duration * factor) for kernel, duration in kernels]


def test_equal_steps_match_wholly() -> None:
    comparison = compare(profile_of([GEMM, RELU], forecast=True), profile_of([GEMM, RELU]))

    assert (comparison.matched_share, comparison.name_share, comparison.score) == (1.0, 1.0, 1.0)
    assert comparison.kernel_time_error == 0.0
    assert (comparison.unmatched_measured, comparison.unmatched_forecast) == ((), ())
    assert comparison.same_bound
    assert comparison.notes == ()


def test_rows_say_whose_error_is_whose() -> None:
    forecast = profile_of([with_times(GEMM, 1.5), with_times(RELU, 0.5)], forecast=True)

    comparison = compare(forecast, profile_of([GEMM, RELU]))

    gemm, relu = comparison.rows
    assert (gemm.kernel_class, gemm.measured_us, gemm.forecast_us) == ("gemm", 20.0, 30.0)
    assert gemm.error == 0.5
    assert gemm.error_share == pytest.approx(10 / 12, abs=1e-6)
    assert (relu.kernel_class, relu.error) == ("elementwise", -0.5)
    assert comparison.kernel_time_error == pytest.approx(8 / 24)


def test_kernels_pair_by_class_and_size_whatever_the_operator_is_called() -> None:
    relu: Call = ("aten::relu", RELU[1], RELU[2])

    comparison = compare(profile_of([relu], forecast=True), profile_of([RELU]))

    assert comparison.matched_share == 1.0
    assert comparison.name_share == 0.0


def test_what_has_no_partner_is_listed() -> None:
    softmax: Call = ("aten::_softmax", [[8, 8]], [("cunn_SoftMaxForward<8>", 3.0)])

    comparison = compare(profile_of([GEMM, softmax], forecast=True), profile_of([GEMM, RELU]))

    assert [row.op for row in comparison.unmatched_measured] == ["aten::clamp_min"]
    assert [row.op for row in comparison.unmatched_forecast] == ["aten::_softmax"]
    assert comparison.matched_share == pytest.approx(20 / 24, abs=1e-6)
    assert "Measured, not forecast: 4.0 µs" in comparison.table()


def test_helpers_of_a_convolution_belong_to_it() -> None:
    shapes = [[4, 3, 8, 8], [16, 3, 3, 3]]
    real: Call = (
        "aten::cudnn_convolution",
        shapes,
        [("Memset (Device)", 1.0), ("cudnn::ops::nchwToNhwcKernel", 2.0), ("volta_sgemm_32x32", 5)],
    )
    ours: Call = ("aten::convolution", shapes, [("implicit_convolve_sgemm", 9.0)])

    comparison = compare(profile_of([ours], forecast=True), profile_of([real]))

    (row,) = comparison.rows
    assert (row.kernel_class, row.num_measured, row.num_forecast) == ("convolution", 3, 1)
    assert (row.measured_us, row.forecast_us) == (8.0, 9.0)
    assert comparison.matched_share == 1.0


def test_gradients_of_old_and_new_convolutions_pair() -> None:
    gradient, image, weight = [2, 16, 8, 8], [2, 4, 8, 8], [16, 4, 3, 3]
    old: list[Call] = [
        ("aten::cudnn_convolution_backward_input", [[], gradient, weight], [("dgrad_engine", 3.0)]),
        ("aten::cudnn_convolution_backward_weight", [[], gradient, image], [("wgrad_alg0", 4.0)]),
    ]
    new: Call = (
        "aten::convolution_backward",
        [gradient, image, weight],
        [("scalePackedTensor_kernel", 1.0), ("sm80_xmma_dgrad", 2.0), ("sm80_xmma_wgrad", 4.0)],
    )

    comparison = compare(profile_of([new], forecast=True), profile_of(old))

    assert comparison.matched_share == 1.0
    assert [(row.size.split(" 2x")[0], row.error) for row in comparison.rows] == [
        ("data gradient", 0.0),
        ("weight gradient", 0.0),
    ]


def test_a_gpu_that_waits_is_host_bound() -> None:
    busy = compare(profile_of([GEMM] * 4, forecast=True), profile_of([GEMM] * 4))
    idle = compare(profile_of([GEMM] * 4, forecast=True), profile_of([GEMM] * 4, gap_us=40.0))

    assert (busy.measured.bound, busy.forecast.bound) == ("gpu", "gpu")
    assert (idle.measured.bound, idle.same_bound) == ("host", False)
    assert "differs" in idle.table()


def test_a_profile_without_kernels_cannot_be_compared() -> None:
    cpu = {"traceEvents": [e for e in trace_of([GEMM])["traceEvents"] if e["cat"] == "cpu_op"]}

    with pytest.raises(TraceError, match="holds no kernels"):
        compare(profile_of([GEMM]), read_profile_events(cpu))


def test_two_profiles_and_other_gpus_are_reported() -> None:
    other = trace_of([GEMM])
    other["deviceProperties"][0]["name"] = "NVIDIA H100 80GB HBM3"

    comparison = compare(read_profile_events(other), profile_of([GEMM]))

    assert any("two profiles were compared" in note for note in comparison.notes)
    assert any("the GPUs differ" in note for note in comparison.notes)


def test_a_program_with_all_sizes_doubled_is_called_another_one() -> None:
    def doubled(call: Call) -> Call:
        return call[0], [[2 * shape[0], *shape[1:]] for shape in call[1]], call[2]

    product: Call = ("aten::mm", [[64, 16], [16, 32]], [("volta_sgemm_64x64_nn", 20.0)])
    twice: Call = ("aten::mm", [[128, 16], [16, 32]], [("volta_sgemm_64x64_nn", 40.0)])
    made = compare(profile_of([twice, doubled(RELU)], forecast=True), profile_of([product, RELU]))

    (warning,) = made.warnings
    assert warning.startswith("the forecast's problems are 2 times as large as the measured ones")
    assert "100% of the measured kernel time" in warning
    assert "Not the same program" in made.table().splitlines()[0]
    assert made.to_json()["warnings"] == (warning,)


def test_two_programs_are_distinguished_and_one_is_not_doubted() -> None:
    convolution: Call = (
        "aten::cudnn_convolution",
        [[8, 3, 32, 32], [64, 3, 3, 3]],
        [("implicit_convolve_sgemm", 90.0)],
    )
    other = compare(profile_of([GEMM, RELU], forecast=True), profile_of([convolution, RELU]))
    same = compare(profile_of([GEMM, RELU], forecast=True), profile_of([GEMM, RELU]))
    mostly = compare(profile_of([GEMM], forecast=True), profile_of([GEMM, RELU]))

    assert other.warnings[0].startswith("only 4% of the measured kernel time has a partner")
    assert same.warnings == mostly.warnings == ()


def test_profiles_without_shapes_may_be_of_two_programs_too() -> None:
    softmax: Call = ("aten::_softmax", [], [("cunn_SoftMaxForward<8>", 30.0)])
    without = profile_of([(name, [], kernels) for name, _, kernels in (GEMM, softmax)])

    [warning] = compare(profile_of([GEMM], forecast=True), without).warnings

    assert warning.startswith("only 40% of the measured kernel time has a partner of its class in")
    assert compare(profile_of([GEMM, softmax], forecast=True), without).warnings == ()


@pytest.mark.parametrize(("share", "num_warnings"), [(0.5, 0), (0.499, 1)])
def test_half_of_the_kernel_time_makes_one_program(share: float, num_warnings: int) -> None:
    assert len(differences_by_class(share)) == len(differences([], [], [], share)) == num_warnings


def test_a_loader_that_the_forecast_does_not_know_is_noted() -> None:
    real = profile_of([GEMM])
    real = replace(real, steps=tuple(replace(step, loader_ns=2_000) for step in real.steps))

    notes = compare(profile_of([GEMM], forecast=True), real).notes

    assert "the measured program spends 2.0 µs a step in its DataLoader" in notes[0]
    assert notes[0] not in compare(real, real).notes


def test_json_and_markdown_hold_the_figures() -> None:
    comparison = compare(profile_of([with_times(GEMM, 1.5)], forecast=True), profile_of([GEMM]))

    figures = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    markdown = comparison.to_markdown()

    assert (figures["schema_version"], figures["aliases_version"]) == (2, 3)
    assert figures["kernel_time_error"] == 0.5
    assert figures["rows"][0]["op"] == "aten::addmm"
    assert "| gemm | 1 | 1 | 20.0 | 30.0 | +50.0% | 100.0% |" in markdown
    assert markdown.startswith("### A step\n")


def test_steps_stand_side_by_side_and_those_too_many_alone() -> None:
    ours, theirs = profile_of([GEMM], forecast=True), profile_of([GEMM])
    twice = replace(theirs, steps=theirs.steps * 2)

    rows = compare(ours, twice).steps

    assert [(row.measured_name, row.forecast_name) for row in rows] == [
        ("ProfilerStep#1", "ProfilerStep#1"), ("ProfilerStep#1", "")
    ]  # fmt: skip
    assert (rows[0].measured_kernel_us, rows[0].forecast_kernel_us) == (20.0, 20.0)
    assert (rows[1].measured_kernels, rows[1].forecast_kernels) == (1, None)


def test_operators_are_compared_on_the_host_too() -> None:
    rows = compare(profile_of([GEMM], forecast=True), profile_of([GEMM, GEMM])).operators

    (row,) = rows
    assert (row.op, row.num_measured, row.num_forecast) == ("aten::addmm", 2, 1)
    assert row.measured_us == pytest.approx(2 * row.forecast_us)
    assert row.error == pytest.approx(-0.5)


def test_without_shapes_kernels_pair_by_class_and_order_but_are_not_called_matched() -> None:
    bare = profile_of([GEMM])
    bare = replace(bare, ops=tuple(op._replace(shapes=()) for op in bare.ops))

    comparison = compare(profile_of([with_times(GEMM, 2.0)], forecast=True), bare)

    assert comparison.unmatched_measured == comparison.unmatched_forecast == ()
    assert comparison.matched_share == 0.0
    assert comparison.class_share == 1.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nt", KernelClass.GEMM),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", KernelClass.GEMM),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", KernelClass.GEMM),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", KernelClass.GEMM),
        ("void gemv2T_kernel_val<int, int, float>", KernelClass.GEMM),
        ("void splitKreduce_kernel<32, 16, int, float>", KernelClass.GEMM),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", KernelClass.GEMM),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32", KernelClass.CONVOLUTION),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4", KernelClass.CONVOLUTION),
        ("void cudnn::cnn::wgrad_alg0_engine<float>", KernelClass.CONVOLUTION),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", KernelClass.ATTENTION),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", KernelClass.ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", KernelClass.ATTENTION),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
            "(at::TensorIteratorBase&)::{lambda()#2}>",
            KernelClass.ELEMENTWISE,
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
         KernelClass.REDUCTION),
        ("void (anonymous namespace)::softmax_warp_forward<float>", KernelClass.SOFTMAX),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", KernelClass.NORMALIZATION),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>",
         KernelClass.NORMALIZATION),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", KernelClass.COPY),
        ("Memcpy HtoD (Pageable -> Device)", KernelClass.COPY),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>",
         KernelClass.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         KernelClass.COLLECTIVE),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float>",
         KernelClass.GATHER),
        ("my_own_thing", KernelClass.UNKNOWN),
    ],
)  # fmt: skip
def test_a_kernels_name_states_its_class(name: str, expected: KernelClass) -> None:
    assert class_of_name(name) is expected


def test_the_names_of_a_forecasts_kernels_give_their_class() -> None:
    import torch
    import torch.nn.functional as F

    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(8, 512, device="cuda", requires_grad=True)
        rows = torch.zeros(4, dtype=torch.long, device="cuda")
        wide = torch.log_softmax(torch.cat([x] * 8, 1), -1) + torch.softmax(x, -1).sum()
        F.cross_entropy(F.dropout(wide, 0.1), rows.repeat(2)).backward()
        F.embedding(rows, x).cumsum(0).topk(4)
        F.layer_norm(x, (512,)) @ x.t()
        x.half().index_select(0, rows).sort()

    for kernel, estimate in forecast.kernels:
        name = kernel_display_name(kernel, estimate, forecast.gpu)
        assert class_of_name(name) is kernel.kernel_class, (kernel.name, name)


CALLS = st.lists(
    st.sampled_from([GEMM, RELU, with_times(GEMM, 2.0), ("aten::x", [[4]], [("odd", 2.5)])]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(ours=CALLS, theirs=CALLS)
def test_nothing_is_lost_and_shares_are_shares(ours: list[Call], theirs: list[Call]) -> None:
    comparison = compare(profile_of(ours, forecast=True), profile_of(theirs))

    rows = comparison.rows
    assert sum(row.measured_us for row in rows) == pytest.approx(comparison.measured.kernel_us)
    assert sum(row.forecast_us for row in rows) == pytest.approx(comparison.forecast.kernel_us)
    assert sum(row.num_measured for row in rows) == comparison.measured.num_kernels
    total = sum(row.error_share for row in rows)
    assert total == pytest.approx(1.0, abs=1e-4) or total == 0.0
    assert 0 <= comparison.name_share <= comparison.matched_share <= comparison.class_share <= 1
    assert 0 <= comparison.score <= 1
    assert compare(profile_of(theirs, forecast=True), profile_of(theirs)).kernel_time_error == 0


# -- the command ---------------------------------------------------------------------------------


def files(folder: Path) -> tuple[str, str]:
    ours, real = folder / "ours.json", folder / "real.json"
    ours.write_text(json.dumps(trace_of([with_times(GEMM, 1.1)], forecast=True)))
    real.write_text(json.dumps(trace_of([GEMM])))
    return str(ours), str(real)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, real = files(tmp_path)
    wanted = ["--json", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md")]

    code = main(["compare", ours, real, *wanted])

    assert code == 0
    assert "By kernel class" in capsys.readouterr().out
    assert json.loads((tmp_path / "c.json").read_text())["kernel_time_error"] == 0.1
    assert "### By kernel class" in (tmp_path / "c.md").read_text()


def test_the_command_states_what_is_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, _ = files(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text("{}")

    assert main(["compare", ours, str(bad)]) == 2
    assert "is not a trace" in capsys.readouterr().err


def test_comparing_traces_needs_no_torch(tmp_path: Path) -> None:
    ours, real = files(tmp_path)
    program = (
        "import sys; from neusight.integrations.cli.main import main; "
        f"main(['compare', {ours!r}, {real!r}]); sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_a_forecast_compared_with_its_own_trace_has_no_error(tmp_path: Path) -> None:
    import torch

    with neusight.forecast_on("H100", host="profiled") as forecast:
        model = torch.nn.Linear(256, 256, device="cuda")
        for _ in range(3):
            model(torch.randn(64, 256, device="cuda")).sum().backward()
            forecast.step()
    path = tmp_path / "own.pt.trace.json.gz"
    forecast.export_chrome_trace(path)

    comparison = neusight.compare(forecast, path)

    assert (comparison.kernel_time_error, comparison.step_time_error) == (0.0, 0.0)
    assert (comparison.matched_share, comparison.score) == (1.0, 1.0)
    assert comparison.forecast.gpu == "NVIDIA H100 80GB HBM3"


# -- public profiles -----------------------------------------------------------------------------


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_with_profile", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compared(model: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    # The example sets it for its process.
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    forecast = example().forecast_of(model)
    return compare(forecast, next(TRACES.glob(pattern)))


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "pattern", "matched", "kernel_error", "step_error"),
    [
        ("bert-small", "h100__gaunernst*", 0.98, 0.30, 0.35),
        ("vit-base", "h100__Falconsai*", 0.98, 0.30, 0.10),
        ("resnet50", "v100__resnet50*", 0.98, 0.20, 0.10),
    ],
)
def test_forecasts_come_near_public_profiles(
    model: str,
    pattern: str,
    matched: float,
    kernel_error: float,
    step_error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = compared(model, pattern, monkeypatch)

    assert comparison.matched_share >= matched, comparison.table()
    assert abs(comparison.kernel_time_error) <= kernel_error, comparison.table()
    assert abs(comparison.step_time_error) <= step_error, comparison.table()
    assert comparison.same_bound, comparison.table()

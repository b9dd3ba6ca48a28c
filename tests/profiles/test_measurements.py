"""Operators of a profile, called again in a forecast, show which kernels took the time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.profiles.measurements import (
    TraceMeasurements,
    _shapes_after,
    frozen,
    measurements_of,
    outermost_ops,
    reported_left_out,
)
from neusight.integrations.profiles.reading.profile import HostOp, Profile
from neusight.integrations.profiles.reading.reading import read_profile, read_profile_events
from neusight.output.trace.file import trace_events
from neusight.predictors.errors import CalibrationError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, GemmSize, KernelClass
from neusight.predictors.registry import predict
from places import TRACES, needs_traces
from profile_events import device_event, host_event, trace_of_events

#: Dims, type, strides and value of an argument, as profiles write them.
Input = tuple[Any, str, Any, str]

KERNEL = "ampere_bf16_gemm"


def call(
    name: str,
    inputs: list[Input],
    *kernels: tuple[str, float],
    category: str = "kernel",
) -> dict[str, Any]:
    """An operator: dims, type, strides and value of each input; names and µs of its kernels."""
    return {
        "name": name,
        "args": {
            "Input Dims": [item[0] for item in inputs],
            "Input type": [item[1] for item in inputs],
            "Input Strides": [item[2] for item in inputs],
            "Concrete Inputs": [item[3] for item in inputs],
        },
        "kernels": kernels,
        "category": category,
    }


def profile_of(calls: list[dict[str, Any]], device: str = "NVIDIA H100 80GB HBM3") -> Profile:
    """A profile of those operators, one after the other."""
    events: list[dict[str, Any]] = []
    time_us = 10.0
    for number, item in enumerate(calls, start=1):
        own = {"External id": number}
        events.append(host_event("cpu_op", item["name"], time_us, 8.0, **own, **item["args"]))
        for place, (kernel, duration) in enumerate(item["kernels"]):
            ids: dict[str, Any] = {"correlation": 100 * number + place, **own}
            launched_us, category = time_us + 1 + place, item["category"]
            events += [
                host_event("cuda_runtime", "cudaLaunchKernel", launched_us, 0.5, **ids),
                device_event(kernel, time_us + 20, duration, cat=category, **ids),
            ]
        time_us += 1000.0
    return read_profile_events(trace_of_events(events, device), keep_arguments=True)


def matrix(rows: int, columns: int, dtype: str = "c10::BFloat16") -> Input:
    return [rows, columns], dtype, [columns, 1], ""


NUMBER: Input = ([], "Scalar", [], "1")
MM = call("aten::mm", [matrix(64, 128), matrix(128, 256)], (KERNEL, 5.0))


def measured(*calls: dict[str, Any]) -> TraceMeasurements:
    return measurements_of(profile_of(list(calls)), find_gpu("H100"))


class Model(nn.Module):
    """Embedding, product, norm, attention, convolution, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 256)
        self.linear = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.convolution = nn.Conv1d(512, 64, 3, padding=1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(nn.functional.gelu(self.linear(self.embedding(tokens))))
        heads = hidden.view(4, -1, 8, 64).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        image = mixed.transpose(1, 2).flatten(2).transpose(1, 2)
        result: torch.Tensor = self.convolution(image).softmax(-1).mean()
        return result


@cache
def training_trace() -> dict[str, Any]:
    """Three training steps as a profile would show them, were the forecast the truth."""
    with neusight.forecast_on("H100", host="profiled") as forecast:
        model = Model().cuda().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randint(0, 100, (4, 128), device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu, with_operators=False)
    return {key: value for key, value in trace.items() if key != "neusight"}


def test_every_kernel_of_a_training_step_is_described_again_as_it_was_priced() -> None:
    profile = read_profile_events(training_trace(), keep_arguments=True)

    found = measurements_of(profile, find_gpu("H100"))

    assert found.share > 0.97
    for item in found.measurements:
        priced = sum(estimate.latency_us for estimate in predict(item.launches, "H100"))
        assert item.latency_us == pytest.approx(priced, rel=0.25, abs=0.5), item.launches
    near = [
        abs(item.latency_us - sum(e.latency_us for e in predict(item.launches, "H100"))) < 0.01
        for item in found.measurements
    ]
    assert sum(near) >= 0.85 * len(near)
    classes = {kernel.kernel_class for item in found.measurements for kernel in item.launches}
    assert {
        KernelClass.GEMM,
        KernelClass.ATTENTION,
        KernelClass.CONVOLUTION,
        KernelClass.NORMALIZATION,
        KernelClass.GATHER,
        KernelClass.OPTIMIZER,
    } <= classes


def test_shapes_strides_and_types_make_the_kernel() -> None:
    transposed = ([128, 256], "c10::BFloat16", [1, 128], "")
    found = measured(call("aten::mm", [matrix(64, 128), transposed], (KERNEL, 5.0)))

    [item] = found.measurements
    [kernel] = item.launches
    assert kernel.size == GemmSize(1, 64, 256, 128)
    assert (kernel.dtype, kernel.layout, item.latency_us) == ("bfloat16", "nt", 5.0)
    assert found.share == 1.0 and found.notes == ()


def test_equal_calls_are_one_measurement_with_their_median() -> None:
    calls = [{**MM, "kernels": ((KERNEL, time_us),)} for time_us in (5.25, 6.5, 30.0)]

    [item] = measured(*calls).measurements

    assert item.latency_us == 6.5


def test_times_in_whole_microseconds_are_averaged() -> None:
    calls = [{**MM, "kernels": ((KERNEL, time_us),)} for time_us in (5.0, 5.0, 6.0, 6.0, 6.0)]

    [item] = measured(*calls).measurements

    assert item.latency_us == pytest.approx(5.6)


def test_all_kernels_of_an_operator_count_together() -> None:
    item = {**MM, "kernels": ((KERNEL, 5.5), ("splitKreduce_kernel", 2.0))}

    assert measured(item).measurements[0].latency_us == 7.5


def test_a_kernel_in_tf32_is_reported_by_its_name() -> None:
    inputs = [matrix(64, 128, "float"), matrix(128, 256, "float")]
    plain = call("aten::mm", inputs, ("ampere_sgemm_128x64_nn", 5.0))
    tf32 = call("aten::mm", inputs, ("ampere_tf32_s1688gemm_128x64_nn", 2.0))

    found = measured(plain, tf32).measurements

    assert {item.launches[0].compute: item.latency_us for item in found} == {
        "fp32": 5.0,
        "tf32": 2.0,
    }


def test_numbers_and_expanded_tensors_are_taken_as_they_were() -> None:
    expanded = ([64, 128], "float", [0, 0], "")
    by_number = call("aten::mul", [expanded, ([], "double", [], "")], ("elementwise", 3.0))
    added = call("aten::add", [expanded, matrix(64, 128, "float"), NUMBER], ("elementwise", 4.0))

    found = measured(by_number, added)

    assert [item.launches[0].name for item in found.measurements] == ["mul", "add"]
    assert found.measurements[0].launches[0].bytes_read == 4


def test_older_profiles_have_no_values_of_numbers() -> None:
    """A scale of 1.0 would be refused of whole numbers."""
    whole = matrix(64, 128, "long int")
    older = call("aten::add", [whole, whole, NUMBER], ("elementwise", 3.0))
    del older["args"]["Concrete Inputs"]

    [item] = measured(older).measurements

    assert item.launches[0].dtype == "int64"


def test_settings_are_read_from_their_numbers() -> None:
    nothing: Input = ([], "", [], "")
    copied = call(
        "aten::_to_copy",
        [matrix(64, 128, "float"), ([], "Scalar", [], "15"), nothing, nothing, nothing,
         ([], "Scalar", [], "False"), nothing],
        ("copy", 3.0),
    )  # fmt: skip

    [kernel] = measured(copied).measurements[0].launches

    assert (kernel.dtype, kernel.out_dtype) == ("float32", "bfloat16")


def images(*shape: int) -> Input:
    return list(shape), "float", [], ""


def without_values(item: dict[str, Any]) -> dict[str, Any]:
    """As an older torch records it."""
    del item["args"]["Concrete Inputs"]
    return item


@pytest.mark.parametrize(
    ("name", "inputs", "kernel", "direction"),
    [
        ("aten::cudnn_convolution_backward",
         [images(2, 4, 8, 8), images(2, 16, 4, 4), images(16, 4, 3, 3)], "wgrad",
         "weight_gradient"),
        ("aten::cudnn_convolution", [images(2, 4, 8, 8), images(16, 4, 3, 3)], "fprop", "forward"),
    ],
)  # fmt: skip
def test_convolutions_of_an_older_torch_have_the_stride_of_their_shapes(
    name: str, inputs: list[Input], kernel: str, direction: str
) -> None:
    result = call("aten::relu", [images(2, 16, 4, 4)], ("vectorized", 1.0))

    [found] = [
        item
        for item in measured(without_values(call(name, inputs, (kernel, 9.0))), result).measurements
        if item.latency_us == 9.0
    ]

    [convolution] = found.launches
    assert isinstance(convolution.size, ConvolutionSize)
    assert (convolution.size.direction, convolution.size.stride) == (direction, (2, 2))


def test_an_older_batch_norm_is_taken_to_be_in_training() -> None:
    channel: Input = ([16], "float", [1], "")
    norm = call(
        "aten::native_batch_norm",
        [([2, 16, 8, 8], "float", [1024, 64, 8, 1], ""), *[channel] * 4, ([], "Bool", [], ""),
         ([], "Double", [], ""), ([], "Double", [], "")],
        ("bn_fw_tr_1C11_kernel_NCHW", 3.0),
    )  # fmt: skip

    [item] = measured(without_values(norm)).measurements

    assert item.launches[0].kernel_class is KernelClass.NORMALIZATION


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("bfloat16", "bfloat16"), ("5", "float16"), ("15", "bfloat16"), ("6", "float32")],
)
def test_a_setting_is_a_number_or_a_name(value: str, dtype: str) -> None:
    found = measured(copied_to(value))

    assert [item.launches[0].out_dtype for item in found.measurements] == [dtype]


@pytest.mark.parametrize("value", ["16", "12", "99", "-1", "nothing"])
def test_a_setting_that_is_none_is_reported(value: str) -> None:
    found = measured(copied_to(value))

    assert found.measurements == ()
    assert "setting" in found.notes[0] and found.notes[0].endswith("is not known")


def copied_to(dtype: str) -> dict[str, Any]:
    nothing: Input = ([], "", [], "")
    return call(
        "aten::_to_copy",
        [matrix(64, 128, "double"), ([], "Scalar", [], dtype), ([], "Scalar", [], "0"), nothing,
         nothing, ([], "Scalar", [], "False"), nothing],
        ("copy", 3.0),
    )  # fmt: skip


def test_positions_in_lists_are_whole_numbers() -> None:
    positions: Input = ([[9]], "TensorList", [], "")
    index = call("aten::index", [matrix(64, 128, "float"), positions], ("index_elementwise", 3.0))

    [item] = measured(index).measurements

    assert item.launches[0].kernel_class is KernelClass.GATHER


def test_weights_that_an_optimizer_steps_are_fp32_where_any_tensor_is() -> None:
    lists: Input = ([[64, 128], [64, 128]], "TensorList", [], "")
    step = call("aten::_foreach_mul_", [lists, ([], "Scalar", [], "0.9")], ("multi_tensor", 3.0))
    relu = call("aten::relu", [matrix(64, 128, "float")], ("relu", 1.0))

    mixed = measured(step, MM, call("aten::relu", [matrix(64, 128)], ("relu", 2.0)), relu)
    [found] = [item for item in mixed.measurements if item.latency_us == 3.0]

    assert found.launches[0].dtype == "float32"
    assert "whose types are unknown" in measured(step).notes[0]


@pytest.mark.parametrize(
    ("left_out_ns", "lines"),
    [
        ({"a": 10, "b": 20}, ["2.0% of the kernel time was left out: b",
                              "1.0% of the kernel time was left out: a"]),
        ({"a": 9, "b": 9, "c": 10}, ["1.0% of the kernel time was left out: c",
                                     "1.8% of the kernel time was left out for smaller reasons"]),
        ({}, []),
    ],
)  # fmt: skip
def test_reasons_of_a_hundredth_are_shown_by_themselves(
    left_out_ns: dict[str, int], lines: list[str]
) -> None:
    assert list(reported_left_out(left_out_ns, 1000)) == lines


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, [2, [3, [4]]]], (1, (2, (3, (4,))))), ([[[[[1]]]]], (((((),),),),)),
        ([True, 2.5, "x", None, {}], (True, 2.5, "x", (), ())), (None, ()), ({}, ()),
    ],
)  # fmt: skip
def test_lists_are_frozen_as_deep_as_operators_take_them(value: object, found: object) -> None:
    assert frozen(value) == found


def test_lists_of_tensors_take_the_type_that_all_others_have() -> None:
    lists: Input = ([[64, 128], [64, 128]], "TensorList", [], "")
    cat = call("aten::cat", [lists, ([], "Scalar", [], "1")], ("CatArrayBatchedCopy", 3.0))

    [item] = [
        item
        for item in measured(cat, MM).measurements
        if item.launches[0].kernel_class is KernelClass.COPY
    ]

    assert item.launches[0].dtype == "bfloat16"
    mixed = measured(cat, MM, call("aten::relu", [matrix(64, 128, "float")], ("relu", 1.0)))
    assert any("lists of tensors whose types" in note for note in mixed.notes)


def test_what_is_not_known_is_left_out_and_said() -> None:
    convolution = {
        **call("aten::conv2d", [([1, 3, 8, 8], "float", [], "")], ("scudnn", 40.0)),
        "name": "aten::convolution",
        "args": {
            "Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []],
            "Input type": ["float", "float", "", *["GenericList"] * 3, "Bool", "GenericList",
                           "Int"],
        },
    }  # fmt: skip
    unknown = call("vendor::op", [matrix(8, 8)], ("magic", 30.0))
    reduced = call("c10d::allreduce_", [matrix(8, 8)], ("ncclDevKernel_AllReduce", 20.0))
    copied = call(
        "aten::copy_",
        [matrix(8, 8), matrix(8, 8), ([], "Scalar", [], "False")],
        ("Memcpy HtoD (Pageable -> Device)", 10.0),
        category="gpu_memcpy",
    )

    found = measured(MM, convolution, unknown, reduced, copied)

    assert found.share == pytest.approx(5 / 105)
    text = "\n".join(found.notes)
    for reason in (
        "38.1% of the kernel time was left out: operators without the values",
        "28.6% of the kernel time was left out: kernels of operators that neusight does not know",
        "19.0% of the kernel time was left out: collectives",
        "9.5% of the kernel time was left out: copies to and from the host",
    ):
        assert reason in text


def test_a_call_that_torch_refuses_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    found = measured(call("aten::mm", [matrix(64, 128), matrix(99, 256)], (KERNEL, 5.0)))

    assert found.measurements == ()
    assert "aten::mm cannot be called again" in found.notes[0]
    assert "Traceback" not in capfd.readouterr().err


def test_the_outermost_known_operator_owns_what_lies_within() -> None:
    trace = {
        "traceEvents": [
            host_event("cpu_op", name, ts, dur)
            for name, ts, dur in (
                ("aten::linear", 0, 50), ("aten::t", 1, 5), ("aten::addmm", 10, 30),
                ("MyNode", 60, 30), ("aten::clone", 61, 20), ("aten::copy_", 65, 10),
                ("aten::copy_", 95, 4),
            )
        ]
    }  # fmt: skip
    profile = read_profile_events(trace)

    owners = outermost_ops(profile)

    names = [profile.ops[owner].name if owner >= 0 else "" for owner in owners]
    assert names == ["", "aten::t", "aten::addmm", "", "aten::clone", "aten::clone", "aten::copy_"]


def test_a_forecast_a_trace_without_kernels_and_one_without_shapes_are_refused() -> None:
    forecast = {**training_trace(), "neusight": {"forecast": True}}
    with pytest.raises(CalibrationError, match="is a forecast itself"):
        measurements_of(read_profile_events(forecast, keep_arguments=True), find_gpu("H100"))
    with pytest.raises(CalibrationError, match=r"holds no kernels.*ProfilerActivity\.CUDA"):
        measurements_of(profile_of([{**MM, "kernels": ()}]), find_gpu("H100"))
    with pytest.raises(CalibrationError, match=r"keep_arguments=True"):
        measurements_of(read_profile_events(training_trace()), find_gpu("H100"))
    with pytest.raises(CalibrationError, match=r"has no shapes.*record_shapes=True"):
        measurements_of(profile_of([{**MM, "args": {}}]), find_gpu("H100"))


@needs_traces
@pytest.mark.parametrize("name", ["bert-small", "nsfw_image"])
def test_public_profiles_of_inference_are_understood_whole(name: str) -> None:
    [path] = TRACES.glob(f"h100__*{name}*")

    found = measurements_of(read_profile(path, keep_arguments=True), find_gpu("H100"))

    assert found.share > 0.99
    assert len(found.measurements) >= 12


@pytest.mark.parametrize(("num_inside", "found"), [(38, [(8, 9)]), (39, [])])
def test_the_result_of_an_operator_is_looked_for_among_forty(
    num_inside: int, found: list[tuple[int, ...]]
) -> None:
    """Those inside of it, of another thread and without shapes are none that its result goes to."""
    inside = [HostOp("inner", 1 + at, 1, "1/1", ((3,),)) for at in range(num_inside - 2)]
    ops = [
        HostOp("outer", 0, 100, "1/1", ((5,),)), *inside, HostOp("other", 101, 1, "1/2", ((7,),)),
        HostOp("no shapes", 102, 1, "1/1"), HostOp("next", 103, 1, "1/1", ((8, 9), (1,))),
    ]  # fmt: skip
    profile = Profile("a.json", "H100", False, True, (), tuple(ops), (), ())

    assert list(_shapes_after(profile, 0)) == found

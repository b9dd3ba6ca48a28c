"""Pricing: the registry and the predictor are asked once for equal calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from neusight.predictors import GPU, Estimate, Kernel, UnsupportedKernelError, find_gpu
from neusight.predictors.errors import CalibrationError
from neusight.predictors.measuring.calibration import Calibration
from neusight.recording.recording import MathMode, OpCall, OpSignature, Recording, Step, TensorSpec
from neusight.timeline.host import PLAIN, PROFILED, HostProfile
from neusight.timeline.pricing import Pricer, measured_host

SPEC = TensorSpec((1024,), (1,), "float32")
MATH = MathMode()


class Counting:
    """A predictor of round numbers that counts what it is asked."""

    name = "counting"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        self.batches.append(len(kernels))
        return [Estimate(10.0, 9.0, 11.0, "memory", "physics", self.name) for _ in kernels]


def call_of(op: str) -> OpCall:
    arguments = (("self", SPEC), ("other", SPEC), ("alpha", 1))
    return OpCall(OpSignature(op, "Tensor", arguments, (SPEC,)), MATH)


def test_a_recording_is_priced_in_one_batch() -> None:
    predictor = Counting()
    pricer = Pricer(find_gpu("H100"), predictor)
    calls = (call_of("aten::add"), call_of("aten::mul"), call_of("aten::add"))

    pricer.prepare(Recording((Step("train", calls, 5),), "H100", "2.13.0"))
    for call in calls:
        pricer(call)

    assert predictor.batches == [2]


def test_an_op_without_a_mapping_is_collected_with_its_reason() -> None:
    pricer = Pricer(find_gpu("H100"), Counting())

    ((kernel, _),) = pricer(call_of("mylib::mystery"))

    assert kernel.kernel_class.value == "unknown"
    assert kernel.num_bytes == 3 * 4096
    assert pricer.unmapped == {"mylib::mystery": "no function is registered for it"}


def test_a_view_launches_nothing() -> None:
    signature = OpSignature("aten::t", "default", (("self", SPEC),), (SPEC,))

    assert Pricer(find_gpu("H100"), Counting())(OpCall(signature, MATH)) == ()


def test_a_cost_of_the_host_that_is_not_known_is_refused() -> None:
    fitted = Calibration("H100", "tiled", "1", plain_host={"op_us": 1.0, "magic_us": 2.0})

    with pytest.raises(CalibrationError, match=r"does not know \(magic_us\)"):
        measured_host(PLAIN, fitted)


@pytest.mark.parametrize(("host", "launch_us"), [(PLAIN, 2.0), (PROFILED, 7.0)])
def test_a_measured_host_has_its_costs_and_says_so(host: HostProfile, launch_us: float) -> None:
    fitted = Calibration(
        "H100", "tiled", "1", plain_host={"launch_us": 2.0}, profiled_host={"launch_us": 7.0}
    )

    measured = measured_host(host, fitted)

    assert measured == replace(
        host, name=f"{host.name}, calibrated", fastest=0.9, slowest=1.1, launch_us=launch_us
    )
    assert measured_host(replace(host, name="mine"), fitted).name == "mine"
    assert measured_host(host, replace(fitted, plain_host=None, profiled_host=None)) == host


def scaled_mm(dtype: str) -> OpCall:
    left, right = TensorSpec((64, 64), (64, 1), dtype), TensorSpec((64, 64), (1, 64), dtype)
    scale, out = TensorSpec((), (), "float32"), TensorSpec((64, 64), (64, 1), "bfloat16")
    arguments = (("self", left), ("mat2", right), ("scale_a", scale), ("scale_b", scale))
    return OpCall(OpSignature("aten::_scaled_mm", "default", arguments, (out,)), MATH)


@pytest.mark.parametrize("name", ["H100", "A100", "L4", "MI300X"])
def test_floats_of_4_bits_need_a_blackwell_gpu(name: str) -> None:
    pricer = Pricer(find_gpu(name), Counting())

    with pytest.raises(UnsupportedKernelError, match="Blackwell GPUs do, as B200: choose one, or"):
        pricer(scaled_mm("float4_e2m1fn_x2"))


@pytest.mark.parametrize(("name", "is_refused"), [("T4", True), ("V100", True), ("A100", False)])
def test_tile_packed_integers_of_4_bits_need_ampere(name: str, is_refused: bool) -> None:
    """_weight_int4pack_mm multiplies by m16n8k16, an instruction of compute capability 8.0."""
    specs = {
        "self": TensorSpec((1, 4096), (4096, 1), "bfloat16"),
        "mat2": TensorSpec((512, 32, 32, 4), (4096, 128, 4, 1), "int32"),
        "qScaleAndZeros": TensorSpec((32, 4096, 2), (8192, 2, 1), "bfloat16"),
    }
    result = TensorSpec((1, 4096), (4096, 1), "bfloat16")
    signature = OpSignature("aten::_weight_int4pack_mm", "default", tuple(specs.items()), (result,))
    pricer = Pricer(find_gpu(name), Counting())

    if is_refused:
        with pytest.raises(UnsupportedKernelError, match=r"compute capability 8\.0"):
            pricer(OpCall(signature, MATH))
    else:
        assert len(pricer(OpCall(signature, MATH))) == 1


def test_a_blackwell_gpu_multiplies_floats_of_4_bits() -> None:
    pricer = Pricer(find_gpu("B200"), Counting())

    [(kernel, _)] = pricer(scaled_mm("float4_e2m1fn_x2"))

    assert kernel.dtype == "float4_e2m1fn_x2"


@pytest.mark.parametrize(
    ("name", "dtype", "own"),
    [
        ("MI300X", "float8_e4m3fn", "float8_e4m3fnuz"),
        ("MI325X", "float8_e5m2", "float8_e5m2fnuz"),
        ("MI355X", "float8_e4m3fnuz", "float8_e4m3fn"),
        ("H100", "float8_e5m2fnuz", "float8_e5m2"),
    ],
)
def test_floats_of_8_bits_that_the_gpu_does_not_multiply_are_refused(
    name: str, dtype: str, own: str
) -> None:
    pricer = Pricer(find_gpu(name), Counting())

    with pytest.raises(UnsupportedKernelError, match=f"does not multiply {dtype}; .* is {own}"):
        pricer(scaled_mm(dtype))
    assert len(pricer(scaled_mm(own))) == 1


def convolution_of(math: MathMode) -> OpCall:
    image, weight = (
        TensorSpec((2, 64, 56, 56), (200704, 3136, 56, 1), "float32"),
        TensorSpec((64, 64, 3, 3), (576, 9, 3, 1), "float32"),
    )
    arguments = (("input", image), ("weight", weight), ("bias", None), ("stride", (1, 1)),
                 ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False),
                 ("output_padding", (0, 0)), ("groups", 1))  # fmt: skip
    return OpCall(OpSignature("aten::convolution", "default", arguments, (image,)), math)


@pytest.mark.parametrize(("name", "compute"), [("H100", "tf32"), ("MI300X", "fp32")])
def test_miopen_has_no_tf32_whatever_the_switch_of_cudnn_says(name: str, compute: str) -> None:
    pricer = Pricer(find_gpu(name), Counting())

    kernels = [kernel for kernel, _ in pricer(convolution_of(MathMode(cudnn_tf32=True)))]

    assert {kernel.compute for kernel in kernels if kernel.flops} == {compute}

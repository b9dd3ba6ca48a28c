"""What the host costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.forecast import host_profile
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import MathMode, OpCall, OpSignature, Phase, TensorSpec
from neusight.timeline.host import (
    CLOUD,
    HOST_COSTS,
    OLDER,
    OLDER_HOST_FACTOR,
    PLAIN,
    PROFILED,
    PROFILED_OLDER,
    WSL,
    HostProfile,
    dispatch_us,
    host_of,
    profiled_host_of,
    require_host,
    stated_host,
)

SPEC = TensorSpec((4,), (1,), "float32")


def call(*tensors: TensorSpec, phase: Phase = "forward") -> OpCall:
    signature = OpSignature("aten::op", "default", (("tensors", tensors),), (SPEC,))
    return OpCall(signature, MathMode(), phase=phase)


def test_a_profiler_never_makes_the_host_faster() -> None:
    for name in HOST_COSTS:
        assert getattr(PLAIN, name) <= getattr(PROFILED, name), name


def test_a_plain_simple_op_takes_four_to_six_microseconds_with_its_launch() -> None:
    plain = dispatch_us(call(), (KernelClass.ELEMENTWISE,), host=PLAIN)

    assert 4 <= plain + PLAIN.launch_us + PLAIN.allocate_us <= 6.5


def test_a_profiled_add_takes_what_a_real_profile_shows() -> None:
    profiled = dispatch_us(call(), (KernelClass.ELEMENTWISE,), host=PROFILED)

    total = profiled + PROFILED.launch_us + PROFILED.allocate_us

    assert total == pytest.approx(12.3, rel=0.05)  # median of aten::add on the H100


def test_an_op_without_kernels_is_a_view() -> None:
    assert dispatch_us(call(), (), host=PLAIN) == PLAIN.view_us


def test_every_tensor_of_a_list_costs() -> None:
    one = dispatch_us(call(SPEC), (KernelClass.OPTIMIZER,), host=PLAIN)
    four = dispatch_us(call(SPEC, SPEC, SPEC, SPEC), (KernelClass.OPTIMIZER,), host=PLAIN)

    assert four - one == pytest.approx(3 * PLAIN.list_tensor_us)


def test_backward_ops_cost_less_than_forward_ones() -> None:
    forward = dispatch_us(call(), (KernelClass.GEMM,), host=PLAIN)
    backward = dispatch_us(call(phase="backward"), (KernelClass.GEMM,), host=PLAIN)

    assert backward == pytest.approx(forward * PLAIN.backward_share)


def test_the_dearest_kernel_decides_the_dispatch() -> None:
    classes = (KernelClass.ELEMENTWISE, KernelClass.CONVOLUTION)

    cost = dispatch_us(call(), classes, host=PLAIN)

    assert cost == pytest.approx(PLAIN.convolution_us + PLAIN.extra_kernel_us)


@pytest.mark.parametrize("host", [PLAIN, CLOUD, OLDER, WSL, PROFILED], ids=lambda host: host.name)
def test_every_profile_lies_among_the_hosts_it_stands_for(host: HostProfile) -> None:
    assert host.fastest < 1.0 < host.slowest


def test_the_ranges_of_the_profiles_overlap() -> None:
    """Nobody knows where a program will run: a machine of the cloud may be as fast as one's own."""
    assert CLOUD.op_us * CLOUD.fastest < PLAIN.op_us * PLAIN.slowest
    assert PLAIN.op_us * PLAIN.fastest < CLOUD.op_us < PLAIN.op_us * PLAIN.slowest


def test_an_older_host_is_slower_but_its_gpu_is_not() -> None:
    assert OLDER.op_us == pytest.approx(OLDER_HOST_FACTOR * PLAIN.op_us)
    assert (OLDER.kernel_gap_us, OLDER.launch_latency_us) == (
        PLAIN.kernel_gap_us,
        PLAIN.launch_latency_us,
    )


def test_launches_take_longer_under_wsl_and_nothing_else_does() -> None:
    costs = {name: getattr(WSL, name) for name in HOST_COSTS}

    assert WSL.launch_us > 10 * PLAIN.launch_us
    assert costs == {name: getattr(PLAIN, name) for name in HOST_COSTS} | {
        "launch_us": WSL.launch_us
    }
    assert stated_host("wsl,launch=30", find_gpu("RTX 4060 Ti")).launch_us == 30.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("V100", OLDER),
        ("T4", OLDER),
        ("A100", CLOUD),
        ("L40S", CLOUD),
        ("RTX 4090", PLAIN),
        ("RTX 2080 Ti", OLDER),
        ("RX 6800", CLOUD),
        ("H100", PLAIN),
        ("B200", PLAIN),
    ],
)
def test_a_gpu_comes_with_the_host_that_it_is_mostly_found_in(
    name: str, expected: HostProfile
) -> None:
    assert host_of(find_gpu(name)) is expected
    assert host_of(replace(find_gpu(name), name="Gigabyte", aliases=())) is expected


@pytest.mark.parametrize(
    ("name", "expected"), [("V100", PROFILED_OLDER), ("A100", PROFILED_OLDER), ("H100", PROFILED)]
)
def test_a_profiler_slows_the_host_of_that_day(name: str, expected: HostProfile) -> None:
    assert profiled_host_of(find_gpu(name)) is expected
    assert host_profile("profiled", find_gpu(name)) is expected


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_cost_below_zero_or_without_end_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"HostProfile 'plain': launch_us is .* a cost is"):
        replace(PLAIN, launch_us=value)


def test_a_slow_host_slows_compiled_code_less_than_eager_code() -> None:
    eager, compiled, triton = (
        getattr(CLOUD, name) / getattr(PLAIN, name)
        for name in ("op_us", "compiled_call_us", "triton_us")
    )

    assert 1.0 < triton < compiled < eager
    assert CLOUD.compiled_return_us / PLAIN.compiled_return_us == pytest.approx(compiled)
    assert CLOUD.compiled_library_us / PLAIN.compiled_library_us == pytest.approx(compiled)


def test_a_name_alone_is_that_host() -> None:
    assert stated_host("cloud", find_gpu("H100")) is CLOUD
    assert stated_host("profiled", find_gpu("V100")) is PROFILED_OLDER


def test_twice_the_clock_halves_what_software_costs_and_not_what_the_device_does() -> None:
    fast = stated_host("plain,ghz=7.4", find_gpu("H100"))

    assert fast.op_us == PLAIN.op_us / 2
    assert fast.kernel_gap_us == PLAIN.kernel_gap_us
    assert fast.name == "plain,ghz=7.4"


def test_ingredients_without_a_name_are_of_the_usual_host() -> None:
    host = stated_host("launch=5", find_gpu("T4"))

    assert (host.op_us, host.launch_us, host.name) == (OLDER.op_us, 5.0, "older,launch=5")
    assert host.loop_us / OLDER.loop_us == pytest.approx(5.0 / OLDER.launch_us)


def test_an_older_torch_dispatches_slower_and_launches_alike() -> None:
    host = stated_host("cloud,torch=1.13", find_gpu("A100"))

    assert host.op_us > CLOUD.op_us
    assert (host.launch_us, host.loop_us) == (CLOUD.launch_us, CLOUD.loop_us)
    assert host.assumes == "a core at 3 GHz, the dispatcher of torch 1.13"


@pytest.mark.parametrize(
    ("version", "share"), [("1.13", 1.3), ("2.0", 1.1), ("2.2", 1.1), ("2.3", 1.0), ("2.9", 1.0)]
)
def test_each_release_of_torch_has_its_dispatch(version: str, share: float) -> None:
    host = stated_host(f"cloud,torch={version}", find_gpu("A100"))

    assert host.op_us / CLOUD.op_us == pytest.approx(share)


def test_a_stated_host_is_stated_again_by_its_name() -> None:
    v100 = find_gpu("V100")
    for text in ("ghz=2.2,torch=1.9", "profiled,ghz=3", "cloud,launch=4"):
        host = stated_host(text, v100)

        assert stated_host(host.name, v100) == host


@pytest.mark.parametrize(
    "text", ["", "fast", "plain,ghz=0", "plain,ghz=nan", "plain,ghz=x", "cloud,cores=4",
             "cloud,ghz=3,ghz=4", "torch=two", "plain,", "launch=1e9", "profiled-older,ghz=3"],
)  # fmt: skip
def test_what_means_nothing_is_an_error_that_says_what_would(text: str) -> None:
    with pytest.raises(OptionError, match=r"ghz=3\.4"):
        require_host(text)


def test_a_depthwise_convolution_of_torchs_own_calls_no_library() -> None:
    def cost(channels: int) -> float:
        image = TensorSpec((1, 8, 16, 16), (2048, 256, 16, 1), "float32")
        weight = TensorSpec((8, channels, 3, 3), (9 * channels, 9, 3, 1), "float32")
        arguments = (("input", image), ("weight", weight), ("groups", 8 // channels))
        signature = OpSignature("aten::convolution", "default", arguments, (image,))
        classes = (KernelClass.CONVOLUTION,)
        return dispatch_us(OpCall(signature, MathMode()), classes, host=PLAIN)

    assert (cost(1), cost(8)) == (PLAIN.op_us, PLAIN.convolution_us)


@pytest.mark.parametrize(("least", "most"), [("ghz=0.3", "ghz=10"), ("launch=0.1", "launch=1000")])
def test_figures_that_no_machine_has_are_refused(least: str, most: str) -> None:
    for text in (least, most):
        assert stated_host(f"plain,{text}", find_gpu("H100")).name == f"plain,{text}"
    name, _, value = most.partition("=")
    for text in (f"{least}".replace("3", "29").replace("=0.1", "=0.09"), f"{name}={value}.1"):
        with pytest.raises(OptionError, match=name):
            stated_host(f"plain,{text}", find_gpu("H100"))

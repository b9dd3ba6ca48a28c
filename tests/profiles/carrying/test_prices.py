"""What a measured kernel takes on another GPU, and by which method."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.integrations.profiles.carrying.prices import (
    KEPT_BY_OTHERS,
    KEPT_BY_RELATED,
    CarriedKernel,
    carried_kernels,
    keeps_implementation,
)
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import KernelClass
from neusight.predictors.published.habitat import Habitat
from neusight.predictors.published.wave_scaling import wave_scaled_us
from neusight.predictors.registry import find_predictor
from profile_events import device_event, host_event, trace_of_events

V100, A100 = find_gpu("V100-SXM2-32GB"), find_gpu("A100")

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GEMM = "volta_sgemm_128x64_nt"


def profile_of(op: str, dims: list[Any], *kernels: str, us: float = 100.0) -> Profile:
    """A profile of one operator on V100 that launched those kernels."""
    types = ["float" if shape else "Scalar" for shape in dims]
    values = ["" if shape else "1" for shape in dims]
    args: dict[str, Any] = {"External id": 1, "Input Dims": dims, "Input type": types,
                            "Concrete Inputs": values}  # fmt: skip
    events = [host_event("cpu_op", op, 10, 50, **args)]
    for place, name in enumerate(kernels):
        correlation = 7 + place
        is_copy = name.startswith("Memcpy")
        size = {} if is_copy else {"grid": [65536, 1, 1], "block": [128, 1, 1],
                                   "registers per thread": 24, "shared memory": 0}  # fmt: skip
        events += [
            host_event("cuda_runtime", "cudaLaunchKernel", 20 + place, correlation=correlation),
            device_event(
                name, 100 + place * us, us, correlation, "gpu_memcpy" if is_copy else "kernel",
                **{"External id": 1, **size},
            ),
        ]  # fmt: skip
    return read_profile_events(trace_of_events(events), keep_arguments=True)


def carried(profile: Profile, target: str = "A100") -> list[CarriedKernel]:
    return carried_kernels(
        profile, source=V100, target=find_gpu(target), predictor=find_predictor()
    )


LARGE = [4096, 8192]


def test_a_kernel_that_keeps_its_implementation_is_carried_in_both_ways() -> None:
    [item] = carried(profile_of("aten::add", [LARGE, LARGE, []], ADD, us=450.0))
    assert item.way == "prices and waves"
    size = item.event.size
    assert size is not None
    scaled = wave_scaled_us(
        450.0, size, source=V100, target=A100, intensity=item.kernel.flops / item.kernel.num_bytes
    )
    assert item.estimate.low_us <= scaled <= item.estimate.high_us
    assert item.estimate.latency_us == pytest.approx(scaled, rel=0.2)
    assert item.estimate.low_us < item.estimate.latency_us < item.estimate.high_us
    assert item.kernel.kernel_class is KernelClass.ELEMENTWISE


def test_with_habitat_wave_scaling_gives_the_figure() -> None:
    profile = profile_of("aten::add", [LARGE, LARGE, []], ADD, us=450.0)
    predictor = Habitat({})
    [item] = carried_kernels(profile, source=V100, target=A100, predictor=predictor)
    assert item.way == "waves"
    size = profile.events[0].size
    assert size is not None
    scaled = wave_scaled_us(
        450.0, size, source=V100, target=A100, intensity=item.kernel.flops / item.kernel.num_bytes
    )
    assert item.estimate.latency_us == pytest.approx(scaled, abs=1e-3)
    assert item.estimate.low_us <= item.estimate.latency_us <= item.estimate.high_us


def product(target: str, *, us: float) -> tuple[CarriedKernel, float, float]:
    """A product of a V100, carried to `target`, and our prices there and on it, µs."""
    profile = profile_of("aten::mm", [[4096, 4096], [4096, 4096]], GEMM, us=us)
    [item] = carried(profile, target=target)
    prices = (find_predictor().predict([item.kernel], find_gpu(gpu)) for gpu in (V100.name, target))
    before, after = (price.latency_us for [price] in prices)
    return item, before, after


def test_to_another_capability_a_product_keeps_a_quarter_of_its_deviation() -> None:
    item, before, after = product(A100.name, us=15_000.0)
    assert item.way == "prices"
    assert item.kernel.flops == 2 * 4096**3
    kept = (15_000.0 / before) ** KEPT_BY_OTHERS
    assert item.estimate.latency_us == pytest.approx(after * kept, rel=1e-6)


def test_to_another_card_of_its_capability_a_product_keeps_nearly_all_of_it() -> None:
    item, before, after = product("V100-PCIE-16GB", us=15_000.0)
    kept = (15_000.0 / before) ** KEPT_BY_RELATED
    assert item.estimate.latency_us == pytest.approx(after * kept, rel=1e-6)


def test_helpers_of_a_product_have_no_flops_of_their_own() -> None:
    names = (GEMM, "splitKreduce_kernel", ADD)
    items = carried(profile_of("aten::mm", [[4096, 4096], [4096, 4096]], *names))
    assert sum(item.kernel.flops for item in items) == 2 * 4096**3
    assert len({round(item.estimate.latency_us, 3) for item in items if item.way == "prices"}) == 1


def test_a_kernel_that_nobody_describes_is_carried_by_the_bandwidth_and_says_so() -> None:
    [item] = carried(profile_of("mylib::mystery", [LARGE], "my_kernel"))
    assert item.way == "bandwidth"
    assert item.estimate.origin == "fallback"
    assert item.call.signature.op == "mylib::mystery"
    assert item.estimate.high_us > 1.4 * item.estimate.latency_us


def test_copies_to_the_host_are_carried_by_the_link() -> None:
    [item] = carried(profile_of("aten::copy_", [LARGE, LARGE, []], "Memcpy DtoH"))
    assert item.way == "link"
    expected = 100.0 * V100.pcie_gbps / A100.pcie_gbps
    assert item.estimate.latency_us == pytest.approx(expected, rel=1e-3)


def test_on_its_own_gpu_a_kernel_takes_what_was_measured() -> None:
    profile = profile_of("aten::mm", [[4096, 4096], [4096, 4096]], GEMM)
    [item] = carried(profile, V100.name)
    assert (item.way, item.estimate.latency_us) == ("measured", 100.0)
    assert item.estimate.low_us == item.estimate.high_us == 100.0


@pytest.mark.parametrize(
    "name",
    ["ampere_sgemm_128x64_tn", "void cutlass::Kernel2<...>", "sm80_xmma_fprop_implicit_gemm",
     "void cudnn::bn_fw_tr_1C11_kernel_NCHW", "pytorch_flash::flash_fwd_kernel", "Cijk_Ailk_Bljk"],
)  # fmt: skip
def test_kernels_of_libraries_change_with_the_gpu(name: str) -> None:
    assert not keeps_implementation(name)


@pytest.mark.parametrize("name", [ADD, "triton_poi_fused_add_0", "multi_tensor_apply_kernel"])
def test_kernels_of_torch_stay_as_they_are(name: str) -> None:
    assert keeps_implementation(name)


@pytest.mark.parametrize(
    ("op", "dims", "name"),
    [("aten::mm", [[2048, 1024], [1024, 2048]], GEMM), ("aten::add", [LARGE, LARGE, []], ADD)],
)
def test_between_vendors_a_kernel_takes_what_is_forecast_however_long_it_took(
    op: str, dims: list[Any], name: str
) -> None:
    (short,), (long,) = (
        carried(profile_of(op, dims, name, us=us), "MI300X") for us in (90.0, 900.0)
    )

    assert (short.way, long.way) == ("forecast", "forecast")
    assert short.estimate.latency_us == pytest.approx(long.estimate.latency_us, rel=1e-3)
    assert short.estimate.low_us < short.estimate.latency_us < short.estimate.high_us


def test_between_vendors_the_events_of_an_op_share_its_forecast() -> None:
    dims = [[2048, 1024], [1024, 2048]]
    (alone,) = carried(profile_of("aten::mm", dims, GEMM), "MI300X")
    pair = carried(profile_of("aten::mm", dims, GEMM, "splitKreduce_kernel<float>"), "MI300X")

    assert sum(item.estimate.latency_us for item in pair) == pytest.approx(
        alone.estimate.latency_us, rel=1e-3
    )


MATRICES = [[4096, 4096], [4096, 4096]]


@pytest.mark.parametrize(
    ("op", "dims", "name", "target", "spread"),
    [
        ("aten::mm", MATRICES, GEMM, "A100", 0.25),
        ("aten::mm", MATRICES, GEMM, "V100-PCIE-16GB", 0.14),
        ("aten::mm", MATRICES, GEMM, "MI300X", 0.35),
        ("aten::add", [LARGE, LARGE, []], "cudnn_add", "A100", 0.19),
        ("aten::sum", [LARGE, []], "cudnn_reduce", "A100", 0.35),
        ("mylib::mystery", [LARGE], "my_kernel", "A100", 0.5),
    ],
)  # fmt: skip
def test_the_interval_is_as_wide_as_the_errors_of_such_kernels(
    op: str, dims: list[Any], name: str, target: str, spread: float
) -> None:
    [item] = carried(profile_of(op, dims, name, us=5000.0), target)

    us = item.estimate.latency_us
    assert item.estimate.low_us == pytest.approx(us / (1 + spread), abs=2e-3)
    assert item.estimate.high_us == pytest.approx(us * (1 + spread), abs=2e-3)


def test_what_takes_no_time_takes_none_elsewhere() -> None:
    [item] = carried(profile_of("mylib::mystery", [LARGE], "my_kernel", us=0.0))

    assert (item.estimate.low_us, item.estimate.latency_us, item.estimate.high_us) == (0, 0, 0)

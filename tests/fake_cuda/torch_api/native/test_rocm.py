"""On an AMD GPU torch answers as a ROCm build."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neusight
from neusight.fake_cuda.torch_api.native.rocm import HIP_VERSION, architecture, l2_of_a_die
from neusight.predictors import GPU, find_gpu


def on(name: str, program: Any) -> Any:
    with neusight.forecast_on(name):
        torch.zeros(1, device="cuda")
        return program()


def properties() -> Any:
    return torch.cuda.get_device_properties(0)


def test_versions_are_those_of_rocm_and_none_of_cuda() -> None:
    def program() -> tuple[Any, ...]:
        return torch.version.hip, torch.version.cuda, torch.version.rocm

    hip, cuda, rocm = on("MI300X", program)

    assert (hip, cuda) == (HIP_VERSION, None)
    assert hip.startswith(rocm.rpartition(".")[0])
    assert torch.version.hip is None


def test_an_nvidia_target_has_no_hip() -> None:
    assert on("H100", lambda: (torch.version.hip, torch.version.cuda is None)) == (None, False)


@pytest.mark.parametrize(
    ("name", "architecture_name", "l2_mib", "lds_kib"),
    [("MI100", "gfx908", 8, 64), ("MI250", "gfx90a", 8, 64), ("MI300X", "gfx942", 4, 64),
     ("MI355X", "gfx950", 4, 160)],
)  # fmt: skip
def test_properties_are_those_that_hip_reports(
    name: str, architecture_name: str, l2_mib: int, lds_kib: int
) -> None:
    found = on(name, properties)

    assert found.gcnArchName.split(":")[0] == architecture_name
    assert found.warp_size == 64
    assert found.L2_cache_size == l2_mib << 20
    assert found.shared_memory_per_block == lds_kib << 10


def test_each_die_of_an_mi250_is_a_device_of_its_own() -> None:
    """torch.cuda.device_count() counts graphics compute dies: 104 units and 64 GB each."""
    found = on("MI250", properties)

    assert found.multi_processor_count == 104
    assert found.total_memory == find_gpu("MI250").memory_bytes < 65 * 2**30


def test_the_wheels_architectures_have_no_features_behind_their_names() -> None:
    names = on("MI300X", torch.cuda.get_arch_list)

    assert "gfx942" in names
    assert not any(":" in name for name in names)


def test_a_gpu_of_an_architecture_that_no_wheel_has_counts_as_built_for() -> None:
    own = GPU.from_json(
        find_gpu("MI300X").to_json() | {"name": "MI999", "gcn_arch_name": "gfx999:xnack-",
                                        "driver_name": "AMD MI999", "aliases": []}
    )  # fmt: skip

    with neusight.forecast_on(own):
        torch.zeros(1, device="cuda")
        assert torch.cuda.get_arch_list()[-1] == "gfx999"
    assert architecture(own) == "gfx999"
    assert l2_of_a_die(own) == own.l2_bytes


def test_the_version_that_torch_was_compiled_for_is_one_number() -> None:
    """HIP_VERSION of hip_version.h."""
    compiled_version = on("MI300X", lambda: torch._C._cuda_getCompiledVersion())

    assert compiled_version == 70_226_015


def test_cudnn_is_miopen_and_products_are_hipblaslt_s() -> None:
    def program() -> tuple[Any, ...]:
        blas = torch.backends.cuda.preferred_blas_library
        first = blas()
        return torch.backends.cudnn.version(), str(first), str(blas("cublas"))

    assert on("MI300X", program) == (3_005_001, "_BlasBackend.Cublaslt", "_BlasBackend.Cublas")
    assert on("MI100", program)[1] == "_BlasBackend.Cublas"


def test_the_configuration_names_hip_and_no_cuda() -> None:
    text = on("MI300X", torch.__config__.show)

    assert f"HIP Runtime {HIP_VERSION}" in text
    assert "MIOpen 3.5.1" in text
    assert "CUDA Runtime" not in text


def test_flags_of_nvcc_are_empty_as_on_rocm() -> None:
    assert on("MI300X", torch.cuda.get_gencode_flags) == ""


@pytest.mark.parametrize(("name", "has_tf32"), [("MI250", False), ("MI300X", True)])
def test_tf32_is_there_from_mi300_on(name: str, has_tf32: bool) -> None:
    assert on(name, torch.cuda.is_tf32_supported) is has_tf32


@pytest.mark.slow
def test_a_convolution_and_its_gradient_compile_without_triton() -> None:
    """Inductor asks Triton's backend for the stages of its templates, on ROCm alone."""
    from torch._inductor.template_heuristics import triton as heuristics

    with neusight.forecast_on("MI300X"):
        layer = torch.nn.Conv2d(3, 8, 3).cuda()
        compiled: Any = torch.compile(layer)
        compiled(torch.zeros(2, 3, 8, 8, device="cuda")).sum().backward()
        stages: Any = heuristics
        assert stages.get_backend_num_stages() == 2


def test_convolutions_of_nhwc_images_give_nchw_images_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program() -> bool:
        layer: Any = torch.nn.Conv2d(8, 8, 3, device="cuda")
        layer.to(memory_format=torch.channels_last)
        image = torch.ones(2, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last)
        return bool(layer(image).is_contiguous(memory_format=torch.channels_last))

    assert (on("MI210", program), on("H100", program)) == (False, True)
    monkeypatch.setenv("PYTORCH_MIOPEN_SUGGEST_NHWC", "1")
    assert on("MI210", program)

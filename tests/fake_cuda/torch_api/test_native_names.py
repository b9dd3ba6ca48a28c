"""Names of the C++ core that packages use on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neusight


def test_the_current_stream_has_a_number() -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100"):
        side = torch.cuda.Stream()
        assert core._cuda_getCurrentRawStream(0) == 0
        with torch.cuda.stream(side):
            torch.zeros(8, device="cuda")
            assert core._cuda_getCurrentRawStream(0) == side.cuda_stream


def test_data_parallel_on_one_gpu_trains() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.DataParallel(nn.Linear(8, 8)).cuda()
        out = model(torch.randn(4, 8))  # it brings the batch to the GPU itself
        out.sum().backward()
        assert out.device == torch.device("cuda", 0)

    kernels = [kernel.name for kernel, _ in forecast.kernels]
    assert "memcpy_h2d" in kernels
    assert kernels.count("gemm") >= 2


def test_parts_come_together_again() -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100", world_size=2):
        parts = core._scatter(torch.randn(5, 3), [0, 1], [2, 3], 0, None)
        assert [(part.shape[0], part.device.index) for part in parts] == [(2, 0), (3, 1)]
        assert core._gather(parts, 0, 1).device == torch.device("cuda", 1)
        assert core._gather(parts, 0, -1).shape == (5, 3)
        ((first,), (second,)) = core._broadcast_coalesced([parts[0]], [0, 1], 2**20)
        assert (first.device.index, second.device.index) == (0, 1)
        assert len(core._broadcast(parts[0], [0, 1])) == 2


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("torch.cuda.HalfTensor", torch.float16),
        ("torch.cuda.FloatTensor", torch.float32),
        ("torch.cuda.DoubleTensor", torch.float64),
    ],
)
def test_a_legacy_default_type_says_dtype_and_device(kind: str, dtype: torch.dtype) -> None:
    with neusight.forecast_on("H100"):
        torch.set_default_tensor_type(kind)
        made = torch.zeros(3)
        assert (made.dtype, made.device.type) == (dtype, "cuda")
        torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.zeros(3).device.type == "cpu"
        torch.set_default_tensor_type(kind)

    made = torch.zeros(3)
    assert (made.dtype, made.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("is_named", [True, False])
def test_the_legacy_constructor_follows_the_default_type(is_named: bool) -> None:
    with neusight.forecast_on("H100"):
        legacy: Any = torch.cuda
        torch.set_default_tensor_type("torch.cuda.HalfTensor" if is_named else legacy.HalfTensor)
        values, sizes, none = torch.Tensor([1.0, 2.0]), torch.Tensor(2, 3), torch.Tensor()
        torch.set_default_tensor_type("torch.FloatTensor")
        on_cpu = torch.Tensor([1.0])
        torch.set_default_tensor_type(legacy.FloatTensor)

    made = [(t.dtype, t.device.type, tuple(t.shape)) for t in (values, sizes, none)]
    assert made == [(torch.float16, "cuda", shape) for shape in ((2,), (2, 3), (0,))]
    assert (on_cpu.dtype, on_cpu.device.type) == (torch.float32, "cpu")
    assert torch.Tensor([1.0]).device.type == "cpu"
    assert "__new__" not in vars(torch.Tensor)


def test_a_legacy_type_brings_a_tensor_to_the_gpu() -> None:
    with neusight.forecast_on("H100"):
        legacy: Any = torch.cuda
        for kind in ("torch.cuda.HalfTensor", legacy.HalfTensor):
            made = torch.zeros(3).type(kind)
            assert (made.dtype, made.device.type) == (torch.float16, "cuda")
        assert made.type(torch.int32).dtype == torch.int32
        assert torch.zeros(3).type() == "torch.FloatTensor"
        assert torch.zeros(3, device="cuda").type() == "torch.cuda.FloatTensor"
        assert made.share_memory_() is made


def test_the_options_of_the_build_name_cuda() -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        version, shown = torch.version.cuda, torch.__config__.show()

    assert f"CUDA Runtime {version}" in shown


def test_cuda_graph_trees_import_where_torch_says_that_it_has_cuda() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        assert isinstance(torch._C._cuda_CUDAAllocator_AllocatorState, type)

    assert not hasattr(torch._C, "_cuda_CUDAAllocator_AllocatorState") or torch.version.cuda

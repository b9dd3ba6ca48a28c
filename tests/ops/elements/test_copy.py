"""Copies: by which way, and how many bytes."""

from __future__ import annotations

from neusight.recording.recording import TensorSpec
from op_calls import call, kernels, names, spec, transposed


def to_copy(source: TensorSpec, target: TensorSpec) -> list[str]:
    return names(call("_to_copy", target, self=source, dtype=None, device=None))


def test_copies_go_by_the_bus_the_engine_or_a_kernel() -> None:
    host, gpu = spec(64, device="cpu"), spec(64)

    assert to_copy(host, gpu) == ["memcpy_h2d"]
    assert to_copy(gpu, host) == ["memcpy_d2h"]
    assert to_copy(gpu, spec(64, dtype="bfloat16")) == ["copy"]
    assert names(call("clone", gpu, self=gpu)) == ["memcpy_d2d"]
    assert names(call("clone", spec(8, 8), self=transposed(spec(8, 8)))) == ["copy"]


def test_a_strided_tensor_is_made_dense_before_it_leaves() -> None:
    gaps = TensorSpec((8,), (2,), "float32")

    assert to_copy(gaps, spec(8, device="cpu")) == ["copy", "memcpy_d2h"]


def test_item_reads_one_element() -> None:
    (kernel,) = kernels(call("_local_scalar_dense", 1.0, self=spec()))

    assert (kernel.name, kernel.bytes_read) == ("memcpy_d2h", 4)


def test_a_repeat_reads_its_source_once() -> None:
    (kernel,) = kernels(call("repeat", spec(4, 8), self=spec(8), repeats=(4, 1)))

    assert (kernel.bytes_read, kernel.bytes_written) == (32, 128)


def test_a_concatenation_takes_128_tensors_a_launch() -> None:
    parts = (spec(4),) * 129

    first, second = kernels(call("cat", spec(516), tensors=parts, dim=0))

    assert (first.bytes_read, second.bytes_read) == (128 * 16, 16)
    assert first.bytes_written + second.bytes_written == 516 * 4

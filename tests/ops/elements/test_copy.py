"""Copies: by which way, and how many bytes."""

from __future__ import annotations

from neusight.recording.recording import MathMode, TensorSpec
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


def test_a_concatenation_takes_128_tensors_a_launch() -> None:
    parts = (spec(4),) * 129

    first, second = kernels(call("cat", spec(516), tensors=parts, dim=0))

    assert (first.bytes_read, second.bytes_read) == (128 * 16, 16)
    assert first.bytes_written + second.bytes_written == 516 * 4


def test_a_cast_reads_one_width_and_writes_the_other() -> None:
    x, half = spec(64, 32), spec(64, 32, dtype="float16")

    (kernel,) = kernels(call("_to_copy", half, self=x, dtype="float16"))

    assert (kernel.bytes_read, kernel.bytes_written, kernel.flops) == (8192, 4096, 0)


def test_a_result_on_the_host_is_distinguished_from_what_was_asked_for() -> None:
    """Nothing is known of a tensor that left the GPU: dtype and device are in the arguments."""
    launched = kernels(call("_to_copy", self=spec(64), dtype="float64", device="cpu"))

    assert [kernel.name for kernel in launched] == ["copy", "memcpy_d2h"]
    assert launched[0].bytes_written == launched[1].bytes_read == 512


def test_copy_takes_its_source_by_name() -> None:
    x, host = spec(64), spec(64, device="cpu")

    assert names(call("copy_", x, self=x, src=host)) == ["memcpy_h2d"]
    assert names(call("copy_", x, self=x, src=1.0)) == ["fill"]
    assert names(call("_copy_from", host, self=x, dst=host)) == ["memcpy_d2h"]


def test_a_concatenation_of_aligned_pieces_takes_several_elements_at_once() -> None:
    def layout(*tensors: TensorSpec, torch: tuple[int, int] = (2, 8)) -> str:
        rows = sum(tensor.shape[1] for tensor in tensors)
        target = spec(4, rows, 768, dtype=tensors[0].dtype)
        signature = call("cat", target, tensors=tensors, dim=1)
        return kernels(signature, MathMode(torch=torch))[0].layout

    halves = spec(4, 1, 768, dtype="bfloat16"), spec(4, 196, 768, dtype="bfloat16")
    turned = halves[1]._replace(stride=(196 * 768, 1, 196))

    assert layout(*halves) == "contiguous"
    assert layout(*halves, torch=(2, 7)) == "scalar"
    assert layout(spec(4, 1, 768), spec(4, 196, 768), torch=(2, 7)) == "contiguous"
    assert layout(halves[0], halves[1]._replace(stride=(200 * 768, 768, 1))) == "scalar"
    assert layout(halves[0], turned) == "strided"


def test_a_concatenation_of_odd_columns_takes_one_element_at_a_time() -> None:
    (kernel,) = kernels(call("cat", spec(64, 4001), tensors=(spec(64, 1), spec(64, 4000)), dim=1))

    assert (kernel.layout, kernel.variant) == ("scalar", "cat")


def test_a_cast_goes_element_by_element_unless_it_rounds_floats_to_16_bits() -> None:
    def layout(source: str, target: str) -> str:
        signature = call("_to_copy", spec(64, dtype=target), self=spec(64, dtype=source))
        return kernels(signature)[0].layout

    assert layout("float32", "bfloat16") == layout("float32", "float16") == "contiguous"
    assert layout("bfloat16", "float32") == layout("int64", "float32") == "scalar"


def test_concatenating_dtypes_is_a_copy_a_tensor() -> None:
    parts = (spec(4), spec(4, dtype="float16"))

    assert names(call("cat", spec(8), tensors=parts, dim=0)) == ["memcpy_d2d", "copy"]
    assert names(call("cat", spec(0), tensors=(spec(0),), dim=0)) == []


def test_padding_writes_the_constant_everywhere_then_the_input() -> None:
    fill, copy = kernels(call("constant_pad_nd", spec(10), self=spec(8), pad=(1, 1), value=0))
    (crop,) = kernels(call("constant_pad_nd", spec(6), self=spec(8), pad=(-1, -1), value=0))

    assert (fill.bytes_written, copy.bytes_read, copy.bytes_written) == (40, 32, 32)
    assert (crop.bytes_read, crop.bytes_written) == (24, 24)


def test_a_concatenation_says_how_many_tensors_it_joins_and_how_large_the_largest_is() -> None:
    wide, narrow = spec(4, 64, 8), spec(4, 16, 8)

    (kernel,) = kernels(call("cat", spec(4, 96, 8), tensors=(wide, narrow, narrow), dim=1))

    assert (kernel.num_parts, kernel.widest_part) == (3, wide.numel)
    assert kernel.size == (1, wide.numel + 2 * narrow.numel)


def test_a_concatenation_of_nhwc_images_takes_several_channels_at_once() -> None:
    def layout(channels: int, *, result_last: bool = True) -> str:
        image = spec(2, channels, 5, 5, channels_last=True)
        joined = spec(2, 2 * channels, 5, 5, channels_last=result_last)
        (kernel,) = kernels(call("cat", joined, tensors=(image, image)))
        return kernel.layout

    assert layout(8) == "channels_last"
    assert layout(3) == "scalar"
    assert layout(8, result_last=False) == "scalar"

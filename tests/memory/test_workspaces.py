"""What cuBLAS, cuDNN and attention take for themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.memory.workspaces import Need, Workspaces
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

MIB = 2**20
MATH = MathMode()


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(shape, tuple(reversed(strides)), dtype)


def product(op: str = "aten::mm", **more: TensorSpec) -> OpSignature:
    arguments = {"self": tensor(8, 8), "mat2": tensor(8, 8), **more}
    return OpSignature(op, "default", tuple(arguments.items()), (tensor(8, 8),))


def bias_product() -> OpSignature:
    return product("aten::addmm", self=tensor(8), mat1=tensor(8, 8))


def convolution(
    channels: int, size: int, *, stride: int = 1, dtype: str = "float32", backward: bool = False
) -> OpSignature:
    image = tensor(32, channels, size, size, dtype=dtype)
    weight = tensor(channels, channels, 3, 3, dtype=dtype)
    result = tensor(32, channels, size // stride, size // stride, dtype=dtype)
    shared = (("stride", (stride, stride)), ("padding", (1, 1)), ("dilation", (1, 1)))
    arguments: tuple[tuple[str, Argument], ...]
    if backward:
        arguments = (("grad_output", result), ("input", image), ("weight", weight), *shared,
                     ("transposed", False), ("groups", 1),
                     ("output_mask", (True, True, False)))  # fmt: skip
        return OpSignature("aten::convolution_backward", "default", arguments, (image, weight))
    arguments = (("input", image), ("weight", weight), ("bias", None), *shared,
                 ("transposed", False), ("groups", 1))  # fmt: skip
    return OpSignature("aten::convolution", "default", arguments, (result,))


def attention_backward(op: str, *, key_heads: int = 8, dtype: str = "bfloat16") -> OpSignature:
    query = tensor(2, 8, 200, 72, dtype=dtype)
    key = tensor(2, key_heads, 200, 72, dtype=dtype)
    arguments = (("grad_out", query), ("query", query), ("key", key), ("value", key))
    return OpSignature(op, "default", arguments, (query, key, key))


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("V100", Need("cuBLAS", 8519680, is_kept=True)),
        ("A100", Need("cuBLAS", 8519680, is_kept=True)),
        ("H100", Need("cuBLAS", 32 * MIB, is_kept=True)),
        ("B200", Need("cuBLAS", 32 * MIB, is_kept=True)),
        ("RTX-5090", Need("cuBLAS", 32 * MIB, is_kept=True)),
        ("MI300X", Need("hipBLASLt", 76 * MIB, is_kept=True)),
        ("MI100", Need("hipBLAS", 32 * MIB, is_kept=True)),
    ],
)
def test_a_product_takes_the_workspace_that_torch_sets(name: str, need: Need) -> None:
    assert Workspaces(find_gpu(name), "2.13.0").of(product(), MATH) == (need,)


@pytest.mark.parametrize(
    ("setting", "num_bytes"),
    [(":4096:8", 32 * MIB), (":16:8", 128 * 1024), (":4096:2:16:8", 8519680), ("nonsense", None)],
)
def test_the_size_is_what_the_environment_says(setting: str, num_bytes: int | None) -> None:
    found = Workspaces(find_gpu("A100"), "2.13.0", {"CUBLAS_WORKSPACE_CONFIG": setting})

    assert found.of(product(), MATH)[0].num_bytes == (num_bytes or 8519680)


def test_no_workspace_where_the_environment_forbids_it() -> None:
    found = Workspaces(find_gpu("A100"), "2.13.0", {"CUBLAS_WORKSPACE_CONFIG": ":0:0"})

    assert found.of(product(), MATH) == ()


@pytest.mark.parametrize(
    ("version", "lt"),
    [
        ("2.0.0", [Need("cuBLASLt", MIB)]),
        ("2.6.0", [Need("cuBLASLt", MIB)]),
        ("2.7.0", [Need("cuBLASLt", MIB, is_kept=True)]),
        ("2.10.0", [Need("cuBLASLt", MIB, is_kept=True)]),
        ("2.11.0", []),
        ("2.13.0+cpu", []),
        ("", []),
    ],
)
def test_a_bias_in_the_epilogue_is_cublaslt_whose_workspace_depends_on_torch(
    version: str, lt: list[Need]
) -> None:
    needs = Workspaces(find_gpu("H100"), version).of(bias_product(), MATH)

    assert needs == (Need("cuBLAS", 32 * MIB, is_kept=True), *lt)


def test_separate_workspaces_on_request() -> None:
    environment = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "4096"}

    needs = Workspaces(find_gpu("H100"), "2.13.0", environment).of(bias_product(), MATH)

    assert needs[1] == Need("cuBLASLt", 4 * MIB, is_kept=True)


@pytest.mark.parametrize(
    ("environment", "num_bytes"),
    [
        ({}, MIB),
        ({"CUBLASLT_WORKSPACE_SIZE": "1"}, 1024),
        ({"CUBLASLT_WORKSPACE_SIZE": "all"}, MIB),
        ({"CUBLASLT_WORKSPACE_SIZE": "0"}, None),
        ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, None),
    ],
)
def test_cublaslts_own_workspace_is_what_the_environment_says(
    environment: dict[str, str], num_bytes: int | None
) -> None:
    needs = Workspaces(find_gpu("A100"), "2.8.0", environment).of(bias_product(), MATH)

    assert [need.num_bytes for need in needs[1:]] == ([] if num_bytes is None else [num_bytes])


def test_torch_before_2_took_none_from_the_allocator() -> None:
    assert Workspaces(find_gpu("V100"), "1.9.0").of(product(), MATH) == ()


def test_an_empty_product_takes_nothing() -> None:
    empty = replace(product(), outputs=(tensor(0, 8),))

    assert Workspaces(find_gpu("H100"), "2.13.0").of(empty, MATH) == ()


@pytest.mark.parametrize(
    ("channels", "size", "num_bytes"), [(256, 14, 47185920), (512, 7, 56623104)]
)
def test_winograd_workspaces_are_those_of_a_public_profile(
    channels: int, size: int, num_bytes: int
) -> None:
    """ResNet-50, batch 32, FP32, on a V100: forward and both gradients."""
    found = Workspaces(find_gpu("V100"), "1.9.0")

    for backward in (False, True):
        call = convolution(channels, size, backward=backward)
        for math in (MathMode(cudnn_tf32=False), MathMode()):  # a V100 has no TF32
            assert found.of(call, math) == (Need("cuDNN", num_bytes, is_optional=True),)


@pytest.mark.parametrize(
    ("inputs", "outputs", "forward", "backward"),
    [
        (127, 512, 0, 36 * (127 * 512 + 639 * 128) * 4),
        (128, 128, 36 * (128 * 128 + 256 * 128) * 4, 36 * (128 * 128 + 256 * 128) * 4),
        (64, 300, 0, 36 * (64 * 300 + 364 * 128) * 4),
        (300, 63, 0, 0),
    ],
)
def test_winograd_begins_at_128_channels_and_for_weights_at_64(
    inputs: int, outputs: int, forward: int, backward: int
) -> None:
    """32 images of 5 x 8: 2 x 2 tiles each."""
    image, weight = tensor(32, inputs, 5, 8), tensor(outputs, inputs, 3, 3)
    result = tensor(32, outputs, 5, 8)
    shared: dict[str, Argument] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    shared["transposed"] = False
    calls: tuple[dict[str, Argument], ...] = (
        {"input": image, "weight": weight, "bias": None, **shared, "groups": 1},
        {
            "grad_output": result, "input": image, "weight": weight, **shared, "groups": 1,
            "output_mask": (True, True, False),
        },
    )  # fmt: skip
    names = ("aten::convolution", "aten::convolution_backward")

    found = [
        sum(
            need.num_bytes
            for need in Workspaces(find_gpu("V100"), "2.13.0").of(
                OpSignature(name, "default", tuple(given.items()), (result,)), MATH
            )
        )
        for name, given in zip(names, calls, strict=True)
    ]

    assert found == [forward, backward]


@pytest.mark.parametrize(
    ("rows", "width", "padded_rows", "padded_width"),
    [(128, 32, 128, 32), (129, 33, 256, 64), (300, 65, 384, 96), (1, 1, 128, 32)],
)
def test_flash_backward_rounds_rows_and_columns_of_its_sums(
    rows: int, width: int, padded_rows: int, padded_width: int
) -> None:
    by_heads = "aten::_scaled_dot_product_flash_attention_backward"
    by_rows = "aten::_flash_attention_backward"
    found = Workspaces(find_gpu("A100"), "2.13.0")

    def needs(op: str, *shape: int) -> list[int]:
        query = tensor(*shape, dtype="float16")
        arguments = (("grad_out", query), ("query", query), ("key", query), ("value", query))
        signature = OpSignature(op, "default", arguments, (query,))
        return [need.num_bytes for need in found.of(signature, MATH)]

    sums = 3 * 5 * padded_rows * (padded_width + 1) * 4
    assert needs(by_heads, 3, 5, rows, width) == needs(by_rows, 3, rows, 5, width) == [sums]
    assert needs(by_rows, rows, 5, width) == [rows * 5 * (padded_width + 1) * 4]  # packed


def test_no_winograd_with_a_stride_or_on_tensor_cores() -> None:
    found = Workspaces(find_gpu("A100"), "2.13.0")

    assert found.of(convolution(256, 14, stride=2), MathMode(cudnn_tf32=False)) == ()
    assert found.of(convolution(256, 14), MathMode(cudnn_tf32=True)) == ()


def test_half_precision_in_nchw_is_copied_to_nhwc_and_back() -> None:
    image, weight = 32 * 256 * 14 * 14 * 2, 256 * 256 * 9 * 2

    needs = Workspaces(find_gpu("H100"), "2.13.0").of(convolution(256, 14, dtype="bfloat16"), MATH)

    assert needs == (Need("cuDNN", image + weight + image + 512, is_optional=True),)


@pytest.mark.parametrize("gpu", ["MI300X", "P100"])
def test_nothing_is_copied_where_no_tensor_core_wants_nhwc(gpu: str) -> None:
    call = convolution(256, 14, dtype="float16")

    assert Workspaces(find_gpu(gpu), "2.13.0").of(call, MATH) == ()


def test_copies_have_padded_channels_as_a_public_profile_shows() -> None:
    """ViT-base's patch embedding in BF16 on an H100, four images."""
    image, weight = (
        tensor(4, 3, 224, 224, dtype="bfloat16"),
        tensor(768, 3, 16, 16, dtype="bfloat16"),
    )
    result = tensor(4, 768, 14, 14, dtype="bfloat16")
    arguments = (
        ("input", image), ("weight", weight), ("bias", None), ("stride", (16, 16)),
        ("padding", (0, 0)), ("dilation", (1, 1)), ("transposed", False), ("groups", 1),
    )  # fmt: skip
    call = OpSignature("aten::convolution", "default", arguments, (result,))

    assert Workspaces(find_gpu("H100"), "2.6.0").of(call, MATH) == (
        Need("cuDNN", 7561728, is_optional=True),
    )


def test_copies_of_a_grouped_convolution_have_the_weights_of_each_group() -> None:
    """12 channels to 20 in two groups: 16 and 24 when padded, of the image and of the result."""
    image, result = tensor(3, 12, 8, 8, dtype="float16"), tensor(3, 20, 8, 8, dtype="float16")
    arguments = (
        ("input", image), ("weight", tensor(20, 6, 3, 3, dtype="float16")), ("bias", None),
        ("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False),
        ("groups", 2),
    )  # fmt: skip
    call = OpSignature("aten::convolution", "default", arguments, (result,))

    [need] = Workspaces(find_gpu("H100"), "2.6.0").of(call, MATH)

    assert need.num_bytes == (3 * 64 * (16 + 24) + 24 * 16 // 2 * 9) * 2 + 512


def test_flash_backward_sums_dq_in_float() -> None:
    found = Workspaces(find_gpu("H100"), "2.13.0")
    op = "aten::_scaled_dot_product_flash_attention_backward"
    accumulated = 2 * 8 * 256 * (96 + 1) * 4
    expanded = 2 * 2 * 8 * 200 * 72 * 2

    assert found.of(attention_backward(op), MATH) == (Need("attention", accumulated),)
    assert found.of(attention_backward(op, key_heads=2), MATH) == (
        Need("attention", accumulated + expanded),
    )


@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_other_attention_backwards_sum_dq_in_float(kind: str) -> None:
    op = f"aten::_scaled_dot_product_{kind}_attention_backward"

    needs = Workspaces(find_gpu("H100"), "2.13.0").of(attention_backward(op), MATH)

    assert needs == (Need("attention", 2 * 8 * 200 * (72 + 1) * 4),)


def test_an_efficient_backward_in_float_sums_dq_in_its_result() -> None:
    op = "aten::_scaled_dot_product_efficient_attention_backward"

    needs = Workspaces(find_gpu("H100"), "2.13.0").of(attention_backward(op, dtype="float32"), MATH)

    assert needs == (Need("attention", 2 * 8 * 200 * 4),)


def test_most_ops_take_nothing() -> None:
    relu = OpSignature("aten::relu", "default", (("self", tensor(8)),), (tensor(8),))

    assert Workspaces(find_gpu("H100"), "2.13.0").of(relu, MATH) == ()

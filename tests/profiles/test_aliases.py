"""The class of a kernel and an operator by its name, and what problem an operator solves."""

from __future__ import annotations

import pytest

from neusight.integrations.profiles.aliases import (
    ProblemSize,
    class_of_op,
    gradient_of,
    is_auxiliary,
    size_of,
)
from neusight.integrations.profiles.reading.profile import HostOp
from neusight.predictors.kernel import KernelClass as K

Q, KV, G = (2, 8, 64, 32), (2, 8, 128, 32), (2, 8, 64, 16)
IMAGE, WEIGHT, OUT = (2, 4, 8, 8), (16, 4, 3, 3), (2, 16, 8, 8)


@pytest.mark.parametrize(
    ("kind", "op", "shapes", "gradient", "expected"),
    [
        (K.ATTENTION, "aten::_flash_attention_forward", (Q, KV, KV, (1,)), "",
         ("forward", 32768, 65536, 65536)),
        (K.ATTENTION, "aten::_efficient_attention_backward", (G, Q, KV, KV, Q), "",
         ("backward", 32768, 65536, 65536)),
        (K.ATTENTION, "aten::sdpa", ((64, 32), (2, 64, 32)), "", ("forward", 4096)),
        (K.OPTIMIZER, "aten::_fused_adam_", ((3, 4), (), (5,)), "", ("", 17)),
        (K.ELEMENTWISE, "aten::add", ((3, 4), (4,)), "", ("", 12)),
        (K.ELEMENTWISE, "aten::add", (), "", ("", 1)),
        (K.GEMM, "aten::mm", ((64, 16), (16, 32)), "", ("", 1, 32, 64, 16)),
        (K.GEMM, "aten::addmm", ((32,), (64, 16), (16, 32)), "", ("", 1, 32, 64, 16)),
        (K.GEMM, "aten::linear", ((2, 32, 16), (32, 16), (32,)), "", ("", 1, 32, 64, 16)),
        (K.GEMM, "aten::bmm", ((8, 64, 16), (8, 16, 32)), "", ("", 8, 32, 64, 16)),
        (K.GEMM, "aten::matmul", ((8, 64, 16), (4, 16, 32)), "", ("", 1, 32, 512, 16)),
        (K.GEMM, "aten::dot", ((64,), (64,), (3,)), "", ("", 64, 64)),
        (K.CONVOLUTION, "aten::cudnn_convolution", (IMAGE, WEIGHT, (16,)), "",
         ("forward", *IMAGE, *WEIGHT)),
        (K.CONVOLUTION, "aten::convolution_backward", (OUT, IMAGE, WEIGHT), "data gradient",
         ("data gradient", *OUT, *WEIGHT)),
        (K.CONVOLUTION, "aten::convolution_backward", (OUT, IMAGE, WEIGHT), "weight gradient",
         ("weight gradient", *OUT, *IMAGE)),
        (K.CONVOLUTION, "aten::cudnn_convolution_backward_input", ((3,), OUT, WEIGHT), "x",
         ("x", *OUT, *WEIGHT)),
    ],
)  # fmt: skip
def test_a_problem_is_known_by_the_shapes_of_its_operator(
    kind: K, op: str, shapes: tuple[tuple[int, ...], ...], gradient: str, expected: tuple[str, int]
) -> None:
    words, *values = expected
    found = size_of(kind, HostOp(op, 0, 1, "", shapes), gradient)

    assert found == ProblemSize(words, tuple(values))
    assert str(found) == f"{words} {'x'.join(map(str, values))}".strip()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten::cudnn_convolution", K.CONVOLUTION), ("aten::_flash_attention_forward", K.ATTENTION),
        ("aten::native_batch_norm_backward", K.NORMALIZATION), ("aten::_softmax", K.SOFTMAX),
        ("aten::mm", K.GEMM), ("aten::addmv_", K.GEMM), ("aten::mv.out", K.GEMM),
        ("aten::mmm", K.UNKNOWN), ("aten::_embedding_bag", K.GATHER),
        ("aten::max_pool2d_with_indices", K.REDUCTION), ("aten::_foreach_add_", K.OPTIMIZER),
        ("aten::add", K.UNKNOWN),
    ],
)  # fmt: skip
def test_an_operator_may_have_a_main_kernel(op: str, expected: K) -> None:
    assert class_of_op(op) is expected


@pytest.mark.parametrize(
    ("kind", "op", "expected"),
    [
        (K.COPY, "aten::mm", True), (K.ELEMENTWISE, "aten::mm", False), (K.GEMM, "aten::mm", False),
        (K.ELEMENTWISE, "aten::cudnn_convolution", False), (K.ELEMENTWISE, "aten::_softmax", True),
        (K.COPY, "aten::add", False),
    ],
)  # fmt: skip
def test_what_only_helps_the_main_kernel_is_auxiliary(kind: K, op: str, expected: bool) -> None:
    assert is_auxiliary(kind, op) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cudnn_convolution_backward_input", "data gradient"), ("DGRAD_engine", "data gradient"),
        ("volta_winograd_128x128", "data gradient"), ("stridedB_x", "data gradient"),
        ("cudnn_convolution_backward_weight", "weight gradient"), ("wgrad2d", "weight gradient"),
        ("stridedB_splitK", "weight gradient"), ("nchwToNhwc", ""),
    ],
)  # fmt: skip
def test_a_name_may_state_a_gradient(text: str, expected: str) -> None:
    assert gradient_of(text) == expected

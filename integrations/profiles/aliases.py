"""Which kernel class the kernels of a real profile belong to, and what problem an op solves."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import NamedTuple

from neusight.integrations.profiles.reading.profile import HostOp
from neusight.predictors.kernel import KernelClass

#: Raised whenever an alias changes, so that two comparisons can be distinguished.
ALIASES_VERSION = 3

_K = KernelClass

#: Patterns of kernel names, in lower case; the first that is found decides. Collected from
#: profiles of V100, A100, H100, B200, MI250 and MI300X with torch 1.8 to 2.13.
_NAMES: tuple[tuple[KernelClass, str], ...] = (
    (_K.COPY, r"^mem(cpy|set)|reshape_and_cache"),
    (_K.COLLECTIVE, r"nccl|rccl|multimem_all|all_reduce|one_shot|two_shot|symm_mem"),
    (_K.OPTIMIZER, r"multi_tensor_apply|fused_(adam|sgd|adagrad)|codegen_adagrad"),
    (_K.ATTENTION, r"flash|fmha|mem_?eff|efficient_attention|sdpa|attn_(fwd|bwd)|paged_attention"
                   r"|^bwd_(kernel_(dk_dv|dq|fuse)|preprocess)"),
    (
        _K.CONVOLUTION,
        r"implicit_?gemm|implicit_convolve|explicit_convolve|winograd|scudnn|hcudnn|cudnn_h?s?conv"
        r"|dgrad|wgrad|fprop|conv_?(depthwise)?\d?d|convolve|im2col|col2im|cudnn::cnn|cudnn::engines"
        r"|cask_cudnn|scalepackedtensor|nchwtonhwc|nhwctonchw|miopen.*conv|igemm_|naive_conv"
        r"|implicitgemmconvolution|depthwise|cutlass_cudnn|conv_(fwd|bwd)|xdlops_bwd_weight|im2d2col",
    ),
    (_K.ELEMENTWISE, r"pool\w*_?backward"),
    (_K.GATHER, r"classnll\w*gradinput|nll_loss\w*backward"),
    (_K.NORMALIZATION, r"layer_?norm|rms_?norm|group_?norm|batch_?norm|cudnn::bn|bn_(fw|bw)|"
                       r"rowwisemoments|gammabeta|computeinternalgradients|weight_norm"
                       r"|compute(backward)?fusedparams"),
    (_K.SOFTMAX, r"softmax"),
    (
        _K.SORT,
        r"radixsort|sort|topk|gathertopk|bitonic|mergesort|cub::.*(unique|select)|rocprim.*(partition|select)",
    ),
    (
        _K.GEMM,
        r"gemm|nvjet|cutlass.*kernel2|splitkreduce|cijk_|^bmm_|gemv|dot_kernel|cublaslt"
        r"|scaled_mm|marlin|qgmma|xmma",
    ),
    (_K.GATHER, r"index(select|_select|_elementwise|func|ing|_put|_add|copy|_copy)|gather|scatter"
                r"|embedding|linearize_index|krn_partial|take_"),
    (_K.COPY, r"catarray|direct_copy|copy_device_to_device|copy_kernel|transpose|roll_|flip_"
              r"|float8_copy|permute_"),
    (
        _K.REDUCTION,
        r"reduce_kernel|reduceop|devicescan|devicereduce|cunn_classnll|nll_?loss|_pool|pool_"
        r"|reduce_|norm_kernel|cumsum|scan_|histogram|sum_",
    ),
    (_K.ELEMENTWISE, r"elementwise|pointwise|triton_poi|distribution|fused_dropout|dropout|"
                     r"vectorized|unrolled|lstm_cell|gru_cell|triangular|masked_|arange|activation"
                     r"|gelu|silu|rotary|quant|subtensorop"),
    (_K.REDUCTION, r"triton_(red|per)"),
    (_K.GEMM, r"triton_(mm|tem)"),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _NAMES)

#: Operators whose helpers (layout changes, fills, partial sums) are part of the main kernel.
_OWNERS: tuple[tuple[KernelClass, str], ...] = (
    (_K.CONVOLUTION, r"conv"),
    (_K.ATTENTION, r"attention|sdpa"),
    (_K.NORMALIZATION, r"(batch|layer|group|rms)_norm"),
    (_K.SOFTMAX, r"softmax"),
    (_K.GEMM, r"::(mm|bmm|addmm|baddbmm|addbmm|linear|matmul|_scaled_mm|addmv|mv)(_|$|\.)"),
    (_K.GATHER, r"::_?embedding|_index_put"),
    (_K.REDUCTION, r"(max|avg)_pool"),
    (_K.OPTIMIZER, r"::_foreach_|::_fused_adam|::_fused_sgd|::_fused_adagrad"),
)
_OWNER_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _OWNERS)

#: Old operators' gradients of a convolution, and words of kernel names that show which it is; the
#: last ones as in a profile of ResNet-50 on V100.
_DATA_GRADIENT = re.compile(r"backward_input|dgrad|data_gradient|winograd|stridedb_(?!splitk)")
_WEIGHT_GRADIENT = re.compile(r"backward_weight|wgrad|weight_gradient|stridedb_splitk")
DATA_GRADIENT, WEIGHT_GRADIENT = "data gradient", "weight gradient"


class ProblemSize(NamedTuple):
    """What distinguishes problems of one class; `values` are () where no shapes were recorded."""

    kind: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join([self.kind, "x".join(map(str, self.values))]).strip()


@lru_cache(maxsize=4096)
def class_of_name(name: str) -> KernelClass:
    """The class of a kernel, from the name that a profile shows.

    >>> class_of_name("volta_sgemm_128x64_nt").value
    'gemm'
    """
    text = name.lower().replace("(anonymous namespace)", "")
    for kind, pattern in _PATTERNS:
        if pattern.search(text):
            return kind
    return KernelClass.UNKNOWN


@lru_cache(maxsize=4096)
def class_of_op(op: str) -> KernelClass:
    """The class of the operator's main kernel, where it has one; UNKNOWN for all others."""
    for kind, pattern in _OWNER_PATTERNS:
        if pattern.search(op):
            return kind
    return KernelClass.UNKNOWN


def is_auxiliary(kind: KernelClass, op: str) -> bool:
    """Whether a kernel of that class only helps the operator's main one.

    >>> is_auxiliary(KernelClass.COPY, "aten::cudnn_convolution")
    True
    """
    owner = class_of_op(op)
    if owner in (KernelClass.UNKNOWN, kind):
        return False
    # A bias or an activation after a product is an operator of its own in some versions.
    return kind is not KernelClass.ELEMENTWISE or owner not in (_K.CONVOLUTION, _K.GEMM)


def gradient_of(text: str) -> str:
    """Which gradient of a convolution a kernel or operator of its backward reports by its name; ""
    where it does not.

    >>> gradient_of("sm80_xmma_dgrad_implicit_gemm")
    'data gradient'
    """
    if _WEIGHT_GRADIENT.search(text.lower()):
        return WEIGHT_GRADIENT
    return DATA_GRADIENT if _DATA_GRADIENT.search(text.lower()) else ""


def size_of(kind: KernelClass, op: HostOp, gradient: str = "") -> ProblemSize:
    """The problem that an operator's kernel of that class solves, from the operator's shapes.

    It is the same for the operators of old and new torch, and for an operator and the one inside
    it: `cudnn_convolution_backward_input` and `convolution_backward` give equal sizes.
    """
    shapes = [shape for shape in op.shapes if shape]
    if kind is KernelClass.GEMM:
        return _gemm_size(shapes)
    if kind is KernelClass.CONVOLUTION:
        return _convolution_size(op.name, shapes, gradient)
    if kind is KernelClass.ATTENTION:
        heads = [prod(shape) for shape in shapes if len(shape) >= 3]
        if "backward" in op.name:  # the gradient of the output comes first; it is as large as q
            return ProblemSize("backward", tuple(sorted(heads[1:4])))
        return ProblemSize("forward", tuple(sorted(heads[:3])))
    if kind is KernelClass.OPTIMIZER:
        return ProblemSize("", (sum(prod(shape) for shape in shapes),))
    return ProblemSize("", (max(map(prod, shapes), default=1),))


def _gemm_size(shapes: list[tuple[int, ...]]) -> ProblemSize:
    """Batch, the two outer sizes in order of size (a product may be taken transposed), and k."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if len(matrices) < 2:
        return ProblemSize("", tuple(prod(shape) for shape in shapes[:2]))
    left, right = matrices[-2], matrices[-1]
    rows, inner = prod(left[:-1]), left[-1]
    batch = 1
    if len(left) == len(right) == 3 and left[0] == right[0]:
        batch, rows = left[0], left[1]
    columns = right[-1] if right[-2] == inner else right[-2]
    return ProblemSize("", (batch, *sorted((rows, columns)), inner))


def _convolution_size(op: str, shapes: list[tuple[int, ...]], gradient: str) -> ProblemSize:
    """What goes in: image and weight, or the output's gradient and the other operand."""
    images = [shape for shape in shapes if len(shape) >= 3]
    if "backward" not in op:
        return ProblemSize("forward", tuple(size for shape in images[:2] for size in shape))
    if len(images) >= 3:  # convolution_backward: gradient, image, weight
        images = [images[0], images[1 if gradient == WEIGHT_GRADIENT else 2]]
    return ProblemSize(gradient, tuple(size for shape in images[:2] for size in shape))

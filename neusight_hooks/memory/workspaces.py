"""Memory that libraries take from the allocator for themselves: cuBLAS, cuDNN, attention."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from neusight.memory.allocator import round_up
from neusight.memory.allocator_settings import MIB
from neusight.memory.temporaries import operand_copies, temporaries_of
from neusight.ops import map_op
from neusight.ops.math_mode import math_mode_on
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, ConvolutionSize, Kernel
from neusight.recording.recording import (
    MathMode,
    OpSignature,
    Phase,
    TensorSpec,
    release_of,
)

# -- products: aten/src/ATen/cuda/CublasHandlePool.cpp of torch 2.13

#: A workspace for each handle and stream, taken at the first product and kept. Every thread has a
#: handle of its own, so forward and backward (autograd's thread) have one each.
CUBLAS_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
#: The same on Hopper and Blackwell (compute capability 9, 10 and 12).
CUBLAS_BYTES_FROM_HOPPER = 32 * MIB
#: hipBLAS's and hipBLASLt's. Read in the source, confirmed by no device.
HIPBLAS_BYTES = 32 * MIB
HIPBLASLT_BYTES = 76 * MIB
#: AMD architectures whose products go to hipBLASLt by default (aten/src/ATen/Context.cpp).
HIPBLASLT_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
#: cuBLASLt's own, where it does not share that of cuBLAS.
CUBLASLT_BYTES = MIB

#: From here on cuBLASLt uses the workspace of cuBLAS (pull request 168175).
_UNIFIED_SINCE = (2, 11)
#: From here on cuBLASLt keeps its workspace; before it took one for each call and gave it back, as
#: the profiles of torch 2.6 show.
_LT_KEPT_SINCE = (2, 7)
#: From here on the workspace of cuBLAS comes from the allocator in the sizes above.
_COUNTED_SINCE = (2, 0)

#: Ops that take a cuBLAS handle.
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot",
        "vdot", "_scaled_mm", "_int_mm", "linear", "matmul", "triangular_solve",
        "linalg_solve_triangular",
    )
)  # fmt: skip
#: Products that cuBLASLt computes: those with a bias in the epilogue, and scaled ones.
_LT_PRODUCTS = frozenset(
    {"aten::addmm", "aten::_addmm_activation", "aten::_scaled_mm", "aten::_int_mm"}
)

# -- convolutions

#: Winograd's F(4x4, 3x3): tiles of 6 x 6 for each 4 x 4 of the output.
_WINOGRAD_TILE = 36
_WINOGRAD_OUTPUT = 4
#: Channels from which cuDNN takes Winograd in steps of its own for FP32, whose transformed weights,
#: inputs and outputs lie in the workspace. A public profile of ResNet-50 on a V100: 8 of the 9
#: workspaces above 30 MB of its 3 x 3 convolutions with stride 1 are these sizes to the byte, the
#: other (128 channels at 28 x 28) is 1.1 % more.
_WINOGRAD_CHANNELS = {"forward": 128, "data_gradient": 128, "weight_gradient": 64}
#: Half-precision convolutions of NCHW tensors: cuDNN converts them to NHWC and back, in its
#: workspace. A public profile of ViT-base in BF16 on an H100 shows 7561728 bytes for its patch
#: embedding, which are the three tensors with 3 channels padded to 8, and 512 more.
_TRANSFORM = "nchw_to_nhwc"
_CHANNELS_PADDED_TO = 8
_TRANSFORM_EXTRA_BYTES = 512

# -- attention

#: Rows and columns to which flash attention's backward rounds its FP32 accumulator of dQ
#: (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd).
_FLASH_ROWS, _FLASH_COLUMNS = 128, 32
_FLOAT_BYTES = 4

#: What may be set outside of the program, and matters here.
ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
)


class Need(NamedTuple):
    """What an op takes beside its outputs; `is_kept` until the program ends, else for the op.
    Without what `is_optional` the op runs all the same: where memory lacks, PyTorch takes the next
    kernel of cuDNN, which needs less (aten/src/ATen/native/cudnn/Conv_v8.cpp, try_configs)."""

    name: str
    num_bytes: int
    is_kept: bool = False
    is_optional: bool = False


class Workspaces:
    """Says what an op takes from the allocator for itself on `gpu`.

    `environment` holds those of `ENVIRONMENT` that are set. Not known, and so not counted: what
    cuDNN tries out while torch.backends.cudnn.benchmark looks for the fastest kernel, and the
    workspaces of recurrent networks.
    """

    def __init__(
        self,
        gpu: GPU,
        torch_version: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        environment = environment or {}
        self._gpu = gpu
        self._version = release_of(torch_version)
        self._product = _product_need(gpu, environment)
        self._fp32 = _units_of_fp32(gpu)
        self._lt = _lt_need(self._version, environment) if gpu.vendor == "nvidia" else None
        self._known: dict[tuple[int, int], tuple[Need, ...]] = {}
        self._keep: list[tuple[OpSignature, MathMode]] = []

    def of(self, signature: OpSignature, math: MathMode) -> tuple[Need, ...]:
        """The needs of an op; most have none."""
        key = (id(signature), id(math))
        needs = self._known.get(key)
        if needs is None:
            needs = self._known[key] = self._needs_of(signature, math)
            self._keep.append((signature, math))  # identities must not be used again
        return needs

    def _needs_of(self, signature: OpSignature, math: MathMode) -> tuple[Need, ...]:
        op = signature.op
        if not signature.arguments:  # only its name is known, from a profile
            return ()
        if op in _PRODUCTS:
            return self._of_product(signature)
        if "convolution" in op:
            mapping = map_op(signature, math_mode_on(self._gpu, math))
            return _of_convolution(mapping.kernels, self._fp32)
        attention = _ATTENTION.get(op)
        if attention is not None:
            num_bytes = attention(signature)
            return (Need("attention", num_bytes),) if num_bytes else ()
        return _temporary(temporaries_of(signature))

    def _of_product(self, signature: OpSignature) -> tuple[Need, ...]:
        if self._version < _COUNTED_SINCE or not any(
            spec.device == "cuda" and spec.numel for spec in signature.output_tensors
        ):
            return ()
        needs = [self._product] if self._product.num_bytes else []
        if self._lt is not None and _is_lt_product(signature):
            needs.append(self._lt)
        return (*_temporary(temporaries_of(signature)), *needs)


def _product_need(gpu: GPU, environment: Mapping[str, str]) -> Need:
    if gpu.vendor == "amd":
        if gpu.gcn_arch_name.partition(":")[0] in HIPBLASLT_ARCHITECTURES:
            return Need("hipBLASLt", HIPBLASLT_BYTES, is_kept=True)
        return Need("hipBLAS", HIPBLAS_BYTES, is_kept=True)
    recent = gpu.compute_capability[0] >= 9
    num_bytes = CUBLAS_BYTES_FROM_HOPPER if recent else CUBLAS_BYTES
    sizes = re.findall(r":(\d+):(\d+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if sizes:  # ":4096:8" is 8 pieces of 4096 KiB
        num_bytes = sum(int(size) * 1024 * int(count) for size, count in sizes)
    return Need("cuBLAS", num_bytes, is_kept=True)


def _lt_need(version: tuple[int, int], environment: Mapping[str, str]) -> Need | None:
    """cuBLASLt's own workspace; None where it shares that of cuBLAS."""
    stated = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "")
    if stated == "1" or (stated != "0" and version >= _UNIFIED_SINCE):
        return None
    size = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    num_bytes = int(size) * 1024 if size.isdigit() else CUBLASLT_BYTES
    return Need("cuBLASLt", num_bytes, is_kept=version >= _LT_KEPT_SINCE) if num_bytes else None


def _is_lt_product(signature: OpSignature) -> bool:
    if signature.op not in _LT_PRODUCTS:
        return False
    bias = signature.optional_tensor("self")
    return signature.op != "aten::addmm" or bias is None or len(bias.shape) == 1


def _units_of_fp32(gpu: GPU) -> tuple[str, ...]:
    """The units for which cuDNN takes Winograd in steps of its own. MIOpen takes no workspace for
    most convolutions (two thirds of those of NCHW images in data/miopen_conv)."""
    if gpu.vendor == "amd":
        return ()
    return ("fp32",) if gpu.has_matrix_unit("tf32") else ("fp32", "tf32")


def _of_convolution(kernels: tuple[Kernel, ...], fp32: tuple[str, ...]) -> tuple[Need, ...]:
    """The largest workspace of its passes, which run one after the other; Winograd's are
    taken for the units of `fp32`."""
    transforms = any(kernel.name == _TRANSFORM for kernel in kernels)
    largest = max(
        (
            _transformed_bytes(kernel, kernel.size)
            if transforms
            else _winograd_bytes(kernel, kernel.size, fp32)
            for kernel in kernels
            if isinstance(kernel.size, ConvolutionSize)
        ),
        default=0,
    )
    workspace = (Need("cuDNN", largest, is_optional=True),) if largest else ()
    return (*_temporary(operand_copies(kernels)), *workspace)


def _temporary(sizes: tuple[int, ...]) -> tuple[Need, ...]:
    """Tensors of an op's own, distinguished by their number."""
    return tuple(Need(f"temporary {number}", size) for number, size in enumerate(sizes) if size)


def _transformed_bytes(kernel: Kernel, size: ConvolutionSize) -> int:
    """Image, weight and result in NHWC, their channels padded."""
    inputs = round_up(size.in_channels, _CHANNELS_PADDED_TO)
    outputs = round_up(size.out_channels, _CHANNELS_PADDED_TO)
    elements = size.batch * (
        inputs * math.prod(size.input) + outputs * math.prod(size.output)
    ) + outputs * inputs // size.groups * math.prod(size.kernel)
    return int(elements * DTYPE_BYTES[kernel.dtype]) + _TRANSFORM_EXTRA_BYTES


def _winograd_bytes(kernel: Kernel, size: ConvolutionSize, fp32: tuple[str, ...]) -> int:
    channels = min(size.in_channels, size.out_channels)
    if (
        kernel.compute not in fp32
        or kernel.layout == "channels_last"
        or size.kernel != (3, 3)
        or size.stride != (1, 1)
        or size.input != size.output
        or size.groups != 1
        or channels < _WINOGRAD_CHANNELS[size.direction]
    ):
        return 0
    tiles = size.batch
    for extent in size.output:
        tiles *= -(-extent // _WINOGRAD_OUTPUT)
    weights = size.in_channels * size.out_channels
    images = (size.in_channels + size.out_channels) * tiles
    return _WINOGRAD_TILE * (weights + images) * _FLOAT_BYTES


def _flash_backward_bytes(signature: OpSignature) -> int:
    """FP32 sums of dQ and of dO * O, and with fewer key heads than query heads dK and dV for each
    query head."""
    query, key = signature.tensor("query"), signature.tensor("key")
    if len(query.shape) != 4:  # packed sequences: rows are not rounded one by one
        rows, heads, width = query.shape[-3:]
        return rows * heads * (round_up(width, _FLASH_COLUMNS) + 1) * _FLOAT_BYTES
    by_heads = signature.op.startswith("aten::_scaled_dot_product")
    batch, heads, rows, width = query.shape if by_heads else _heads_first(query.shape)
    _, key_heads, keys, _ = key.shape if by_heads else _heads_first(key.shape)
    rounded = batch * heads * round_up(rows, _FLASH_ROWS)
    sums = rounded * (round_up(width, _FLASH_COLUMNS) + 1) * _FLOAT_BYTES
    element = key.num_bytes // max(1, key.numel)
    expanded = 2 * batch * heads * keys * width * element if key_heads != heads else 0
    return sums + expanded


def _heads_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, rows, heads, width = shape
    return batch, heads, rows, width


def _efficient_backward_bytes(signature: OpSignature) -> int:
    """The sums of dO * O, and dQ in FP32 where the result is half precision (kernel_backward.h,
    kNeedsAccumGradQ)."""
    query = signature.tensor("query")
    width = query.shape[-1]
    rows = query.numel // max(1, width)
    accumulates = query.dtype in ("float16", "bfloat16")
    return (rows + (rows * width if accumulates else 0)) * _FLOAT_BYTES


def _cudnn_backward_bytes(signature: OpSignature) -> int:
    """dQ in FP32 and the sums of dO * O; cuDNN does not document it, so taken as flash's."""
    query: TensorSpec = signature.tensor("query")
    rows = query.numel // max(1, query.shape[-1])
    return (rows + query.numel) * _FLOAT_BYTES


_ATTENTION: dict[str, Callable[[OpSignature], int]] = {
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward_bytes,
    "aten::_flash_attention_backward": _flash_backward_bytes,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward_bytes,
    "aten::_efficient_attention_backward": _efficient_backward_bytes,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward_bytes,
    "aten::_cudnn_attention_backward": _cudnn_backward_bytes,
}


def thread_of(phase: Phase) -> str:
    """The thread that runs an op: autograd has one of its own for each GPU."""
    return "autograd" if phase == "backward" else "main"

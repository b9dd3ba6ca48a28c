"""Which attention kernel PyTorch picks: the rules of its selector, as a function on plain data.

Without a device torch's own selector answers "math" for every call, so its rules are restated here
for PyTorch 2.13 (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` and
`transformers/sdp_utils_cpp.h`), dense tensors only. The test compares them with the answers of
torch's compiled selector for 229 calls on 11 architectures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neusight.recording.recording import TensorSpec

AttentionBackend = Literal["flash", "efficient", "cudnn", "math"]
#: "error": no enabled backend takes the call; torch raises "No available kernel".
AttentionChoice = Literal["flash", "efficient", "cudnn", "math", "error"]
Vendor = Literal["nvidia", "amd"]
Capability = tuple[int, int]

_HALF_DTYPES = ("float16", "bfloat16")
#: Versions are numbers as `torch.backends.cudnn.version()` gives them: 9.20.0 is 92000.
_CUDNN_FIRST_AFTER = 91500
_CUDNN_HEAD_DIM_256_FROM = 91000
_CUDNN_HEAD_DIM_192_128_FROM = 91100
_CUDNN_OLDEST = 90000
#: Between these two (both exclusive) cuDNN's attention cannot do dropout.
_CUDNN_WITHOUT_DROPOUT = (91100, 91400)
_CUDNN_MAX_HEAD_DIM = 128
#: cuDNN draws dropout with a resolution of 1/16.
_CUDNN_DROPOUT_STEPS = 16
_FLASH_MAX_HEAD_DIM = 256
#: AOTriton 0.9 and later, the kernels behind both fused backends on AMD.
_AMD_MAX_HEAD_DIM = 512
_TENSOR_CORE_ALIGNMENT_BITS = 128


@dataclass(frozen=True)
class AttentionCall:
    """One call of `scaled_dot_product_attention`, and the switches of torch that affect it.

    `requires_grad` says that query, key or value needs a gradient and grad mode is on;
    `deterministic` that deterministic algorithms are demanded, not only warned about. `priority`
    is the order the program set with `sdpa_kernel(..., set_priority=True)`, or None.
    """

    query: TensorSpec
    key: TensorSpec
    value: TensorSpec
    mask: TensorSpec | None = None
    mask_requires_grad: bool = False
    requires_grad: bool = False
    dropout_p: float = 0.0
    is_causal: bool = False
    enable_gqa: bool = False
    deterministic: bool = False
    flash_enabled: bool = True
    efficient_enabled: bool = True
    math_enabled: bool = True
    cudnn_enabled: bool = True
    priority: tuple[AttentionBackend, ...] | None = None


def choose_attention(
    call: AttentionCall,
    *,
    compute_capability: Capability,
    cudnn_version: int,
    vendor: Vendor = "nvidia",
) -> AttentionChoice:
    """The backend that PyTorch 2.13 takes for the call on that architecture.

    A call that torch rejects for another reason (head counts that do not divide) gets "math", as
    in torch, where the math path then raises. AMD's rules are read from the same source for
    AOTriton 0.9 to 0.11 on a supported chip; no AMD device has confirmed them: an assumption.

    >>> half = TensorSpec((2, 8, 128, 64), (65536, 8192, 64, 1), "float16")
    >>> call = AttentionCall(half, half, half)
    >>> choose_attention(call, compute_capability=(9, 0), cudnn_version=92000)
    'cudnn'
    >>> choose_attention(call, compute_capability=(8, 0), cudnn_version=92000)
    'flash'
    """
    order = call.priority or priority(compute_capability, cudnn_version, vendor=vendor)
    for backend in order:
        if backend == "math" and call.math_enabled:
            return "math"
        if backend == "flash" and _flash_takes(call, compute_capability, vendor):
            return "flash"
        if backend == "efficient" and _efficient_takes(call, compute_capability, vendor):
            return "efficient"
        if (
            backend == "cudnn"
            and vendor == "nvidia"
            and _cudnn_takes(call, compute_capability, cudnn_version)
        ):
            return "cudnn"
    return "error"


def priority(
    compute_capability: Capability,
    cudnn_version: int,
    *,
    cudnn_deprioritized: bool = False,
    vendor: Vendor = "nvidia",
) -> tuple[AttentionBackend, ...]:
    """The order in which the backends are asked, where the program sets none.

    `cudnn_deprioritized` is the environment variable TORCH_CUDNN_SDPA_DEPRIORITIZED.
    """
    major, minor = compute_capability
    cudnn_first = (
        vendor == "nvidia"
        and not cudnn_deprioritized
        and cudnn_version > _CUDNN_FIRST_AFTER
        and major in (9, 10)
        and minor in (0, 3)
    )
    if cudnn_first:
        return ("cudnn", "flash", "efficient", "math")
    return ("flash", "efficient", "math", "cudnn")


def _flash_takes(call: AttentionCall, capability: Capability, vendor: Vendor) -> bool:
    return (
        call.flash_enabled
        and call.mask is None
        and _is_four_dimensional(call)
        and _flash_head_dim_fits(call, capability, vendor)
        and (vendor == "amd" or (8, 0) <= capability <= (12, 1))
        and not (call.is_causal and call.query.shape[-2] != call.key.shape[-2])
        and _has_one_dtype_of(call, _HALF_DTYPES)
        and _heads_match(call, supports_gqa=True)
        and _has_keys_and_queries(call)
        and _last_dim_is_dense(call, ignore_singleton=True)
    )


def _flash_head_dim_fits(call: AttentionCall, capability: Capability, vendor: Vendor) -> bool:
    head_dim = call.query.shape[-1]
    if not head_dim == call.key.shape[-1] == call.value.shape[-1]:
        return False
    if vendor == "amd":
        return head_dim <= _AMD_MAX_HEAD_DIM
    if head_dim > _FLASH_MAX_HEAD_DIM:
        return False
    # Chips with less shared memory (about 100 KB) cannot run the backward of wide heads.
    is_small_chip = (8, 6) <= capability < (9, 0) or (12, 0) <= capability <= (12, 1)
    if call.requires_grad and is_small_chip:
        return head_dim <= 192 or (head_dim > 224 and call.dropout_p == 0.0)
    return True


def _efficient_takes(call: AttentionCall, capability: Capability, vendor: Vendor) -> bool:
    has_bfloat16 = vendor == "amd" or capability >= (8, 0)
    dtypes = ("float16", "float32", "bfloat16") if has_bfloat16 else ("float16", "float32")
    return (
        call.efficient_enabled
        and (vendor == "amd" or (5, 0) <= capability <= (12, 1))
        and _is_four_dimensional(call)
        and _efficient_head_dim_fits(call, capability, vendor)
        and _has_keys_and_queries(call)
        and _last_dim_is_dense(call, ignore_singleton=False)
        and _heads_match(call, supports_gqa=False)
        and (vendor == "nvidia" or not call.mask or call.mask.dtype in ("bool", call.query.dtype))
        and _has_one_dtype_of(call, dtypes)
    )


def _efficient_head_dim_fits(call: AttentionCall, capability: Capability, vendor: Vendor) -> bool:
    head_dim, value_dim = call.query.shape[-1], call.value.shape[-1]
    if head_dim != call.key.shape[-1] or min(head_dim, value_dim) <= 0:
        return False
    if vendor == "amd":
        # One set of kernels serves both fused backends there, with flash's limits.
        alignment = 8 if call.query.dtype in _HALF_DTYPES else 4
        return head_dim == value_dim <= _AMD_MAX_HEAD_DIM and head_dim % alignment == 0
    alignment = _gemm_alignment(call.query.dtype, capability)
    return head_dim % alignment == 0 and value_dim % alignment == 0


def _gemm_alignment(dtype: str, capability: Capability) -> int:
    """Elements that a row of a CUTLASS GEMM operand must be a multiple of."""
    is_half = dtype in _HALF_DTYPES
    uses_tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and is_half)
    if uses_tensor_cores:
        return _TENSOR_CORE_ALIGNMENT_BITS // (16 if is_half else 32)
    return 1


def _cudnn_takes(call: AttentionCall, capability: Capability, cudnn_version: int) -> bool:
    return (
        call.cudnn_enabled
        and cudnn_version >= _CUDNN_OLDEST
        and _cudnn_can_drop(call, cudnn_version)
        and _is_four_dimensional(call)
        and not call.deterministic
        and _has_one_dtype_of(call, _HALF_DTYPES)
        and _mask_suits_cudnn(call)
        and (8, 0) <= capability <= (12, 1)
        and _has_keys_and_queries(call)
        and _last_dim_is_dense(call, ignore_singleton=True)
        and _heads_match(call, supports_gqa=True, same_key_value_heads=False)
        and _cudnn_head_dims_fit(call, capability, cudnn_version)
        and call.key.shape[-2] != 1
    )


def _cudnn_can_drop(call: AttentionCall, cudnn_version: int) -> bool:
    if call.dropout_p == 0.0:
        return True
    first, last = _CUDNN_WITHOUT_DROPOUT
    return (
        not first < cudnn_version < last
        and (call.dropout_p * _CUDNN_DROPOUT_STEPS).is_integer()
        and call.query.shape[-2] != 1
    )


def _cudnn_head_dims_fit(call: AttentionCall, capability: Capability, cudnn_version: int) -> bool:
    dims = (call.query.shape[-1], call.value.shape[-1])
    limit = _CUDNN_MAX_HEAD_DIM
    if capability == (9, 0) and cudnn_version >= _CUDNN_HEAD_DIM_256_FROM:
        limit = 256
    elif (
        capability[0] == 10
        and dims == (192, 128)  # DeepSeek's latent attention
        and cudnn_version >= _CUDNN_HEAD_DIM_192_128_FROM
    ):
        limit = 192
    return max(dims) <= limit and all(dim % 8 == 0 for dim in dims)


def _mask_suits_cudnn(call: AttentionCall) -> bool:
    if call.mask is None:
        return True
    if call.mask_requires_grad or len(call.mask.shape) not in (2, 4):
        return False
    batch, heads, num_queries, _ = call.query.shape
    full = (batch, heads, num_queries, call.key.shape[-2])[-len(call.mask.shape) :]
    return all(size in (1, wanted) for size, wanted in zip(call.mask.shape, full, strict=True))


def _is_four_dimensional(call: AttentionCall) -> bool:
    return all(len(spec.shape) == 4 for spec in (call.query, call.key, call.value))


def _has_one_dtype_of(call: AttentionCall, dtypes: tuple[str, ...]) -> bool:
    return call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in dtypes


def _has_keys_and_queries(call: AttentionCall) -> bool:
    return call.query.shape[-2] != 0 and call.key.shape[-2] != 0


def _last_dim_is_dense(call: AttentionCall, *, ignore_singleton: bool) -> bool:
    if call.mask is not None and call.mask.stride[-1] != 1:
        return False
    if ignore_singleton and call.query.shape[-1] == 1:
        return True
    return all(spec.stride[-1] == 1 for spec in (call.query, call.key, call.value))


def _heads_match(
    call: AttentionCall, *, supports_gqa: bool, same_key_value_heads: bool = True
) -> bool:
    """Equal batches, and equal heads or (where supported and asked for) whole groups of heads."""
    query, key, value = (spec.shape[:2] for spec in (call.query, call.key, call.value))
    if not query[0] == key[0] == value[0]:
        return False
    if not (call.enable_gqa and supports_gqa):
        return query[1] == key[1] == value[1]
    if same_key_value_heads and key[1] != value[1]:
        return False
    return all(heads != 0 and query[1] % heads == 0 for heads in (key[1], value[1]))

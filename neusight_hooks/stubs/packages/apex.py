"""NVIDIA Apex: fused norms, optimizers and dense layers, and what its `amp` would need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.stubs.shared.fused_optimizers import FusedAdam, FusedSGD
from neusight.stubs.stub_ops import counted, names, stub

Shape = int | Sequence[int]


#: What its layers of norms take.
_NORM = "self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False"


def _sizes(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


@counted("apex")
def fused_layer_norm(input: Tensor, normalized_shape: Shape, eps: float = 1e-6) -> Tensor:
    return F.layer_norm(input, _sizes(normalized_shape), eps=eps)


@counted("apex")
def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return F.layer_norm(input, _sizes(normalized_shape), weight, bias, eps)


@counted("apex")
def fused_rms_norm(input: Tensor, normalized_shape: Shape, eps: float = 1e-6) -> Tensor:
    return F.rms_norm(input, list(_sizes(normalized_shape)), eps=eps)


@counted("apex")
def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return F.rms_norm(input, list(_sizes(normalized_shape)), weight, eps)


class FusedLayerNorm(nn.LayerNorm):
    """One kernel forward, as torch's own."""

    @stub("apex", _NORM)
    def __init__(self, normalized_shape: Shape, eps: float, elementwise_affine: bool) -> None:
        super().__init__(list(_sizes(normalized_shape)), eps, elementwise_affine)


class FusedRMSNorm(nn.RMSNorm):
    """One kernel forward, as torch's own."""

    @stub("apex", _NORM)
    def __init__(self, normalized_shape: Shape, eps: float, elementwise_affine: bool) -> None:
        super().__init__(list(_sizes(normalized_shape)), eps, elementwise_affine)


class FusedDense(nn.Linear):
    """A product with its bias in the epilogue."""

    @counted("apex", "FusedDense")
    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)


class FusedDenseGeluDense(nn.Module):
    """Two products with a GELU between."""

    @counted("apex", "FusedDenseGeluDense")
    def __init__(
        self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.empty(intermediate_features, in_features))
        self.bias1 = nn.Parameter(torch.empty(intermediate_features))
        self.weight2 = nn.Parameter(torch.empty(out_features, intermediate_features))
        self.bias2 = nn.Parameter(torch.empty(out_features))

    def forward(self, input: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(input, self.weight1, self.bias1), approximate="tanh")
        return F.linear(hidden, self.weight2, self.bias2)


# -- multi-tensor functions ------------------------------------------------------------------------


class MultiTensorApply:
    """Calls a function of `amp_C` for lists of tensors."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Any, *args: Any
    ) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


@counted("apex")
def multi_tensor_scale(chunk_size: int, flag: Tensor, lists: Any, scale: float) -> None:
    """Writes all tensors of the first list, scaled, into the second."""
    source, target = lists
    torch._foreach_copy_(target, source)
    torch._foreach_mul_(target, scale)


@counted("apex")
def multi_tensor_axpby(
    chunk_size: int, flag: Tensor, lists: Any, a: float, b: float, check: int = -1
) -> None:
    """a x + b y, into the third list."""
    first, second, target = lists
    scaled = torch._foreach_mul(first, a)
    torch._foreach_copy_(target, torch._foreach_add(scaled, second, alpha=b))


@counted("apex")
def multi_tensor_l2norm(
    chunk_size: int, flag: Tensor, lists: Any, per_tensor: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The norm of all tensors together, and of each."""
    each = torch.stack(list(torch._foreach_norm(lists[0], dtype=torch.float32)))
    return torch.linalg.vector_norm(each), each if per_tensor else None


# -- what is not forecast --------------------------------------------------------------------------


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnmappedOpError(f"{name} at {call_site()} has no stub in a forecast; {instead}.")

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


_AMP = "torch.autocast and torch.amp.GradScaler do what its O1 does, and are forecast"
_OPTIMIZERS = "FusedAdam and FusedSGD of apex.optimizers have one, and all of torch.optim"

_NORMS = names(
    *(FusedLayerNorm, FusedRMSNorm, fused_layer_norm, fused_layer_norm_affine),
    *(fused_rms_norm, fused_rms_norm_affine),
    MixedFusedLayerNorm=FusedLayerNorm,
    MixedFusedRMSNorm=FusedRMSNorm,
    mixed_dtype_fused_layer_norm_affine=fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine=fused_rms_norm_affine,
)
_APPLIER = names(MultiTensorApply, multi_tensor_applier=MultiTensorApply(2048 * 32))

MODULES: dict[str, dict[str, Any]] = {
    "apex": {},
    "apex.amp": names(_refused("apex.amp.initialize", _AMP), _refused("apex.amp.scale_loss", _AMP)),
    "apex.fused_dense": names(FusedDense, FusedDenseGeluDense),
    "apex.multi_tensor_apply": _APPLIER,
    "apex.normalization": _NORMS,
    "apex.normalization.fused_layer_norm": _NORMS,
    "apex.optimizers": names(
        *(FusedAdam, FusedSGD),
        *(_refused(name, _OPTIMIZERS) for name in ("FusedLAMB", "FusedNovoGrad")),
    ),
    "apex.parallel": names(
        nn.SyncBatchNorm,
        nn.parallel.DistributedDataParallel,
        convert_syncbn_model=nn.SyncBatchNorm.convert_sync_batchnorm,
    ),
    "amp_C": names(multi_tensor_axpby, multi_tensor_l2norm, multi_tensor_scale),
}

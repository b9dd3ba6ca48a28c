"""What `flash_attn` computes row by row: rotary embedding, norms, the loss, SwiGLU, each one of its
own kernels, with a backward pass of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from neusight.stubs.shared.gating import silu_product
from neusight.stubs.stub_ops import counted, differentiable, make_op, stub

Given = Sequence[Any]
Saved = Sequence[Tensor]

#: Rows of partial sums of a weight's gradient, one an SM. A forecast asks the target for no number
#: that matters so little: it is that of an H100.
_PARTS = 132


# -- rotary embedding ------------------------------------------------------------------------------

_rotary = make_op(
    "flash_attn::rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    lambda x, cos, sin: torch.empty_like(x),
)
_rotary_inplace = make_op(
    "flash_attn::rotary_inplace(Tensor(a!) x, Tensor cos, Tensor sin) -> ()",
    lambda x, cos, sin: None,
)


def _rotary_backward(saved: Saved, given: Given, grad: Tensor) -> Any:
    return _rotary(grad, *saved), None, None


differentiable(_rotary, _rotary_backward, saves=lambda inputs, out: inputs[1:])


class _RotateInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x)
        _rotary_inplace(x, cos, sin)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _rotary_inplace(grads[0], *ctx.saved_tensors)
        return grads[0], None, None


@stub(
    "flash_attn",
    "x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, "
    "inplace=False, conjugate=False",
)
def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, inplace: bool) -> Tensor:
    """Rotates pairs of the first elements of each head."""
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise AssertionError("rotary_dim must be <= headdim")
    if not inplace:
        return cast("Tensor", _rotary(x, cos, sin))
    return cast("Tensor", _RotateInPlace.apply(x, cos, sin))  # type: ignore[no-untyped-call]


# -- norms -----------------------------------------------------------------------------------------


def _norm_outputs(
    x: Tensor, residual: Tensor | None, weight: Any, bias: Any, is_rms: bool, fp32: bool
) -> tuple[Tensor, ...]:
    """The norm, the sum that was normalised (empty where nothing was added), a mean and a deviation
    of each row."""
    rows = x.shape[:-1].numel()
    adds = residual is not None or (fp32 and x.dtype != torch.float32)
    kept = torch.float32 if fp32 else x.dtype if residual is None else residual.dtype
    return (
        torch.empty_like(x),
        x.new_empty(x.shape if adds else (0,), dtype=kept),
        x.new_empty((0 if is_rms else rows,), dtype=torch.float32),
        x.new_empty((rows,), dtype=torch.float32),
    )


_norm = make_op(
    "flash_attn::norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, bool is_rms, "
    "bool residual_in_fp32) -> (Tensor, Tensor, Tensor, Tensor)",
    _norm_outputs,
)
_norm_gradients = make_op(
    "flash_attn::norm_backward(Tensor grad, Tensor source, Tensor weight, Tensor mean, Tensor "
    "rstd, Tensor? grad_residual, bool has_bias, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    lambda grad, source, weight, mean, rstd, grad_residual, has_bias, dtype: (
        torch.empty_like(source, dtype=dtype),
        source.new_empty((_PARTS, source.shape[-1]), dtype=torch.float32),
        source.new_empty((_PARTS if has_bias else 0, source.shape[-1]), dtype=torch.float32),
    ),
)


class _Norm(torch.autograd.Function):
    """The sum of two inputs and its norm; of the inputs only the sum is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        is_rms: bool,
        prenorm: bool,
        residual_in_fp32: bool,
    ) -> Any:
        out, added, mean, rstd = _norm(x, residual, weight, bias, is_rms, residual_in_fp32)
        source = added if added.numel() else x
        ctx.save_for_backward(source, weight, mean, rstd)
        ctx.has_residual, ctx.has_bias, ctx.dtype = residual is not None, bias is not None, x.dtype
        ctx.set_materialize_grads(False)
        return (out, source) if prenorm else out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        source, weight, mean, rstd = ctx.saved_tensors
        later = grads[1] if len(grads) > 1 else None
        gradient, weights, biases = _norm_gradients(
            grads[0], source, weight, mean, rstd, later, ctx.has_bias, ctx.dtype
        )
        of_bias = biases.sum(0).to(weight.dtype) if ctx.has_bias else None
        of_residual = gradient.to(source.dtype) if ctx.has_residual else None
        of_weight = weights.sum(0).to(weight.dtype)
        return gradient, of_residual, of_weight, of_bias, None, None, None


def _normed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    is_rms: bool,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> Any:
    return _Norm.apply(x, residual, weight, bias, is_rms, prenorm, residual_in_fp32)  # type: ignore[no-untyped-call]


_ADDED = "x, weight, bias, residual=None, eps=1e-6, prenorm=False, residual_in_fp32=False"


@stub("flash_attn", f"{_ADDED}, is_rms_norm=False, **others")
def layer_norm_fn(x: Tensor, is_rms_norm: bool, **settings: Any) -> Any:
    """Adds the residual and normalises, in one kernel."""
    settings.pop("eps")
    return _normed(x, is_rms=is_rms_norm, **settings)


@stub("flash_attn", f"{_ADDED}, **others")
def rms_norm_fn(x: Tensor, **settings: Any) -> Any:
    """The same by the root of the mean square."""
    settings.pop("eps")
    return _normed(x, is_rms=True, **settings)


@counted("flash_attn")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return cast("Tensor", _normed(x, weight, None, None, True))


def _dropout_add(name: str, *, is_rms: bool) -> Callable[..., Any]:
    """Dropout, the residual and the norm, in one kernel."""

    @stub(
        "flash_attn",
        "x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, "
        "prenorm=False, residual_in_fp32=False, return_dropout_mask=False",
        name,
    )
    def dropout_add_norm(
        x0: Tensor, residual: Any, weight: Any, bias: Any, prenorm: bool, residual_in_fp32: bool
    ) -> Any:
        return _normed(x0, weight, bias, residual, is_rms, prenorm, residual_in_fp32)

    dropout_add_norm.__name__ = name
    return cast("Callable[..., Any]", dropout_add_norm)


dropout_add_layer_norm = _dropout_add("dropout_add_layer_norm", is_rms=False)
dropout_add_rms_norm = _dropout_add("dropout_add_rms_norm", is_rms=True)


class RmsNorm(nn.Module):
    """`RMSNorm` of the package: a residual may be added in the same kernel."""

    @stub(
        "flash_attn",
        "self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None, "
        "dtype=None",
        "RMSNorm",
    )
    def __init__(self, hidden_size: int, eps: float, device: Any, dtype: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self, x: Tensor, residual: Any = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """The norm, and with `prenorm` the sum too."""
        return _normed(x, self.weight, None, residual, True, prenorm, residual_in_fp32)


class DropoutAddNorm(nn.Module):
    """`DropoutAddLayerNorm` of the package."""

    @stub(
        "flash_attn",
        "self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, "
        "dtype=None",
        "DropoutAddLayerNorm",
    )
    def __init__(
        self, hidden_size: int, prenorm: bool, residual_in_fp32: bool, device: Any, dtype: Any
    ) -> None:
        super().__init__()
        self.prenorm, self.residual_in_fp32 = prenorm, residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def forward(self, x0: Tensor, residual: Tensor | None = None, rowscale: Any = None) -> Any:
        """The norm, and with `prenorm` the sum too."""
        settings = (False, self.prenorm, self.residual_in_fp32)
        return _normed(x0, self.weight, self.bias, residual, *settings)


# -- the loss --------------------------------------------------------------------------------------

_loss = make_op(
    "flash_attn::cross_entropy(Tensor logits, Tensor labels) -> (Tensor, Tensor, Tensor)",
    lambda logits, labels: tuple(
        logits.new_empty((logits.shape[0],), dtype=torch.float32) for _ in range(3)
    ),
)
_loss_gradient = make_op(
    "flash_attn::cross_entropy_backward(Tensor logits, Tensor grad, Tensor lse, Tensor labels) "
    "-> Tensor",
    lambda logits, grad, lse, labels: torch.empty_like(logits),
)
_loss_gradient_inplace = make_op(
    "flash_attn::cross_entropy_backward_inplace(Tensor(a!) logits, Tensor grad, Tensor lse, "
    "Tensor labels) -> ()",
    lambda logits, grad, lse, labels: None,
)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace_backward: bool) -> Any:
        losses, z_losses, lse = _loss(logits, labels)
        ctx.save_for_backward(logits, lse, labels)
        ctx.inplace_backward = inplace_backward
        ctx.mark_non_differentiable(z_losses)
        ctx.set_materialize_grads(False)
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        logits, lse, labels = ctx.saved_tensors
        if ctx.inplace_backward:
            _loss_gradient_inplace(logits, grads[0], lse, labels)
            return logits, None, None
        return _loss_gradient(logits, grads[0], lse, labels), None, None


@stub(
    "flash_attn",
    "logits, labels, precomputed_lse=None, label_smoothing=0.0, logit_scale=1.0, "
    "lse_square_scale=0.0, ignore_index=-100, inplace_backward=False, process_group=None",
)
def cross_entropy_loss(
    logits: Tensor, labels: Tensor, inplace_backward: bool
) -> tuple[Tensor, Tensor]:
    """The loss of each row and its part that keeps the logits small."""
    losses, z_losses = _CrossEntropy.apply(logits, labels, inplace_backward)  # type: ignore[no-untyped-call]
    return losses, z_losses


# -- SwiGLU ----------------------------------------------------------------------------------------

_swiglu = silu_product("flash_attn")


@counted("flash_attn")
def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return _swiglu(x, y)

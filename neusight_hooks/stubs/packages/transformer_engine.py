"""Transformer Engine: layers whose products run in FP8 inside `fp8_autocast`. Attention is cuDNN's,
as it prefers on Hopper and Blackwell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.stubs.stub_ops import counted, make_op, names

#: Sizes that FP8 products take (its `assert_dim_for_fp8_exec`).
_FP8_ALIGNMENT = 16

_is_fp8 = [False]


@counted("transformer_engine", "fp8_autocast")
def fp8_autocast(enabled: bool = True, **others: Any) -> Any:
    """Products run in FP8 inside."""
    return _in_fp8(enabled)


@contextmanager
def _in_fp8(enabled: bool) -> Iterator[None]:
    before, _is_fp8[0] = _is_fp8[0], enabled
    try:
        yield
    finally:
        _is_fp8[0] = before


# -- products --------------------------------------------------------------------------------------

_cast = make_op(
    "transformer_engine::cast_transpose(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
    lambda x, dtype: (
        x.new_empty(x.shape, dtype=dtype),
        x.new_empty(x.shape[::-1], dtype=dtype),
    ),
)


def _product(
    left: Tensor, right: Tensor, scale: Tensor, dtype: torch.dtype, bias: Any = None
) -> Tensor:
    """left @ right.T, both in FP8 and row by row."""
    multiply: Any = torch._scaled_mm
    out: Tensor = multiply(
        left, right.t(), scale_a=scale, scale_b=scale, bias=bias, out_dtype=dtype
    )
    return out


def _kinds() -> tuple[torch.dtype, torch.dtype]:
    """Of values and of gradients; MI300's are others."""
    if torch.version.hip and "gfx94" in torch.cuda.get_device_properties(0).gcnArchName:
        return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
    return torch.float8_e4m3fn, torch.float8_e5m2


class _Fp8Product(torch.autograd.Function):
    """x @ weight.T in FP8. Each operand is cast and transposed in one kernel; the transposes are
    what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, scale: Tensor) -> Tensor:
        of_values = _kinds()[0]
        cast_x, turned_x = _cast(x, of_values)
        cast_weight, turned_weight = _cast(weight, of_values)
        ctx.save_for_backward(turned_x, turned_weight, scale)
        ctx.dtypes, ctx.has_bias = (x.dtype, weight.dtype), bias is not None
        return _product(cast_x, cast_weight, scale, x.dtype, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        turned_x, turned_weight, scale = ctx.saved_tensors
        grad = grads[0].contiguous()
        cast_grad, turned_grad = _cast(grad, _kinds()[1])
        of_x = _product(cast_grad, turned_weight, scale, ctx.dtypes[0])
        of_weight = _product(turned_grad, turned_x, scale, ctx.dtypes[0]).to(ctx.dtypes[1])
        return of_x, of_weight, grad.sum(0) if ctx.has_bias else None, None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Any) -> Tensor:
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if not _is_fp8[0]:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % _FP8_ALIGNMENT or any(size % _FP8_ALIGNMENT for size in weight.shape):
        raise AssertionError(
            f"FP8 execution requires sizes divisible by {_FP8_ALIGNMENT}, but got tensors with "
            f"dims={list(rows.shape)} and {list(weight.shape)}"
        )
    out = _Fp8Product.apply(rows, weight, bias, scale)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]


class ScaledLinear(nn.Module):
    """`Linear` of the package."""

    @counted("transformer_engine", "Linear")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": params_dtype}
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, **made))
        nn.init.normal_(self.weight, std=0.023)  # its default
        self.bias = nn.Parameter(torch.zeros(out_features, **made)) if bias else None
        self.register_buffer("fp8_scale", torch.ones((), device=device), persistent=False)

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None, **others: Any
    ) -> Tensor:
        return _linear(inp, self.weight, self.bias, self.fp8_scale)


class NormLinear(ScaledLinear):
    """`LayerNormLinear` of the package: a norm before the product."""

    @counted("transformer_engine", "LayerNormLinear")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias, params_dtype, device)
        self.norm = _norm(normalization, in_features, eps, params_dtype, device)

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None, **others: Any
    ) -> Tensor:
        return super().forward(self.norm(inp))


def _norm(kind: str, width: int, eps: float, dtype: Any, device: Any) -> nn.Module:
    made: dict[str, Any] = {"device": device, "dtype": dtype}
    if kind == "RMSNorm":
        return nn.RMSNorm(width, eps, **made)
    return nn.LayerNorm(width, eps, **made)


_GATED: dict[str, Callable[..., Tensor]] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
_PLAIN: dict[str, Callable[..., Tensor]] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class NormMlp(nn.Module):
    """`LayerNormMLP` of the package: a norm and two products with an activation between."""

    @counted("transformer_engine", "LayerNormMLP")
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__()
        self.activation = activation
        wide = ffn_hidden_size * (2 if activation in _GATED else 1)
        made: dict[str, Any] = {"params_dtype": params_dtype, "device": device}
        self.fc1 = NormLinear(hidden_size, wide, eps, bias, normalization, **made)
        self.fc2 = ScaledLinear(ffn_hidden_size, hidden_size, bias, **made)

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None, **others: Any
    ) -> Tensor:
        """The second product of what is active of the first."""
        hidden = self.fc1(inp)
        if self.activation in _GATED:
            first, second = hidden.chunk(2, dim=-1)
            hidden = _GATED[self.activation](first) * second
        else:
            hidden = _PLAIN[self.activation](hidden)
        out: Tensor = self.fc2(hidden)
        return out


# -- attention and the layer -----------------------------------------------------------------------


class DotProductAttention(nn.Module):
    """Attention by cuDNN, or by plain products in float32."""

    @counted("transformer_engine", "DotProductAttention")
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.1,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        softmax_scale: float | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        self.attention_dropout, self.qkv_format = attention_dropout, qkv_format
        self.attn_mask_type, self.softmax_scale = attn_mask_type, softmax_scale

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Tensor | None = None,
        qkv_format: str | None = None,
        attn_mask_type: str | None = None,
        **others: Any,
    ) -> Tensor:
        """[sequence, batch, heads, width] or, as "bshd", batch first."""
        order = (1, 2, 0, 3) if (qkv_format or self.qkv_format) == "sbhd" else (0, 2, 1, 3)
        tensors = [t.permute(*order) for t in (query_layer, key_layer, value_layer)]
        causal = "causal" in (attn_mask_type or self.attn_mask_type)
        dropout = self.attention_dropout if self.training else 0.0
        attend: Any
        if query_layer.dtype in (torch.float16, torch.bfloat16):
            attend = torch.ops.aten._scaled_dot_product_cudnn_attention
            found = attend(*tensors, None, torch.is_grad_enabled(), dropout, causal, False)[0]
        else:
            grouped = tensors[1].shape[1] != tensors[0].shape[1]
            attend = F.scaled_dot_product_attention
            found = attend(*tensors, dropout_p=dropout, is_causal=causal, enable_gqa=grouped)
        back = found.permute(2, 0, 1, 3) if order[0] == 1 else found.permute(0, 2, 1, 3)
        out: Tensor = back.flatten(2)
        return out


class TransformerLayer(nn.Module):
    """Attention and a perceptron, each behind its norm."""

    @counted("transformer_engine", "TransformerLayer")
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        self_attn_mask_type: str = "causal",
        attn_input_format: str = "sbhd",
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        bias: bool = True,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"params_dtype": params_dtype, "device": device}
        self.width = hidden_size // num_attention_heads
        self.heads, self.groups = num_attention_heads, num_gqa_groups or num_attention_heads
        joint = (self.heads + 2 * self.groups) * self.width
        self.qkv = NormLinear(hidden_size, joint, layernorm_epsilon, bias, normalization, **made)
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.width,
            num_gqa_groups,
            attention_dropout,
            attn_input_format,
            self_attn_mask_type,
        )
        self.proj = ScaledLinear(hidden_size, hidden_size, bias, **made)
        self.mlp = NormMlp(
            hidden_size, ffn_hidden_size, layernorm_epsilon, bias, normalization, activation, **made
        )
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **others: Any) -> Tensor:
        """[sequence, batch, width] or, as "bshd", batch first."""
        joint = self.qkv(hidden_states).unflatten(-1, (-1, self.width))
        query, key, value = joint.split([self.heads, self.groups, self.groups], dim=2)
        attended = self.proj(self.core_attention(query, key, value))
        hidden = hidden_states + self.dropout(attended)
        out: Tensor = hidden + self.dropout(self.mlp(hidden))
        return out


class ScalingRecipe:
    """A way to scale, which a forecast does not state from others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.settings = kwargs


class Format:
    """Which FP8 types forward and backward take."""

    E4M3, E5M2, HYBRID = "E4M3", "E5M2", "HYBRID"


_RECIPES = {
    "Format": Format,
    **dict.fromkeys(("DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling"), ScalingRecipe),
}

MODULES: dict[str, dict[str, Any]] = {
    "transformer_engine": {},
    "transformer_engine.common": {},
    "transformer_engine.common.recipe": _RECIPES,
    "transformer_engine.pytorch": {
        **names(DotProductAttention, TransformerLayer, fp8_autocast),
        "LayerNorm": nn.LayerNorm,
        "LayerNormLinear": NormLinear,
        "LayerNormMLP": NormMlp,
        "Linear": ScaledLinear,
        "RMSNorm": nn.RMSNorm,
    },
}

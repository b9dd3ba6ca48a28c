"""Mamba (`mamba_ssm`) and its convolution (`causal_conv1d`): scans of state-space models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.stubs.shared.flash_rows import RmsNorm, layer_norm_fn, rms_norm_fn
from neusight.stubs.stub_ops import counted, differentiable, make_op, names, stub

Given = Sequence[Any]
Saved = Sequence[Any]

#: Steps of a sequence after which the selective scan keeps its state (selective_scan.cpp).
_SCAN_CHUNK = 2048

# -- the short convolution -------------------------------------------------------------------------

_conv = make_op(
    "causal_conv1d::conv(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    lambda x, weight, bias: torch.empty_like(x),
)
_conv_gradients = make_op(
    "causal_conv1d::conv_backward(Tensor x, Tensor weight, Tensor? bias, Tensor grad) "
    "-> (Tensor, Tensor, Tensor)",
    lambda x, weight, bias, grad: (
        torch.empty_like(x),
        torch.empty_like(weight),
        x.new_empty((0,)) if bias is None else torch.empty_like(bias),
    ),
)
_conv_update = make_op(
    "causal_conv1d::conv_update(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias) -> Tensor",
    lambda x, state, weight, bias: torch.empty_like(x),
)


def _conv_backward(saved: Saved, given: Given, grad: Tensor) -> Any:
    gradients = _conv_gradients(*saved, grad)
    return gradients if saved[2] is not None else (*gradients[:2], None)


differentiable(_conv, _conv_backward, saves=lambda inputs, out: inputs)


@stub(
    "causal_conv1d",
    "x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, "
    "final_states_out=None, activation=None",
)
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    return_final_states: bool,
    final_states_out: Tensor | None,
    activation: str | None,
) -> Any:
    """A convolution of each channel over its last steps, with its activation, in one kernel."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    out = _conv(x, weight, bias)
    if not return_final_states:
        return out
    states = final_states_out
    if states is None:
        states = x.new_empty((*x.shape[:2], weight.shape[1] - 1))
    return out, states


@stub(
    "causal_conv1d",
    "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None",
)
def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Any) -> Any:
    return _conv_update(x, conv_state, weight, bias)


# -- the selective scan (Mamba 1) ------------------------------------------------------------------


def _scan_outputs(
    u: Tensor, delta: Tensor, A: Tensor, B: Any, C: Any, D: Any, z: Any, bias: Any
) -> Any:
    """The result, the gated one (empty without a gate) and the states that are kept."""
    batch, dim, length = u.shape
    chunks = -(-length // _SCAN_CHUNK)
    return (
        torch.empty_like(u),
        u.new_empty((0,)) if z is None else torch.empty_like(z),
        u.new_empty((batch, dim, chunks, 2 * A.shape[1]), dtype=torch.float32),
    )


def _gradients_of_eight(*arguments: Any) -> Any:
    """Of each of the first eight operands, empty where it is left out."""
    return tuple(
        arguments[0].new_empty((0,)) if tensor is None else torch.empty_like(tensor)
        for tensor in arguments[:8]
    )


_SCAN = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias"
)
_scan = make_op(f"mamba_ssm::selective_scan({_SCAN}) -> (Tensor, Tensor, Tensor)", _scan_outputs)
_scan_gradients = make_op(
    f"mamba_ssm::selective_scan_backward({_SCAN}, Tensor out, Tensor states, Tensor grad) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradients_of_eight,
)


def _scan_backward(saved: Saved, given: Given, grad: Any, gated: Any, states: Any) -> Any:
    inputs, (out, kept) = saved[:8], saved[8:]
    gradients = _scan_gradients(*inputs, out, kept, gated if grad is None else grad)
    return tuple(None if i is None else g for i, g in zip(inputs, gradients, strict=True))


differentiable(_scan, _scan_backward, saves=lambda inputs, out: (*inputs, out[0], out[2]))


@stub(
    "mamba_ssm",
    "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
    "return_last_state=False",
)
def selective_scan_fn(
    z: Tensor | None, delta_softplus: bool, return_last_state: bool, **operands: Any
) -> Any:
    """The scan of [batch, channels, steps], gated by z, in one kernel."""
    out, gated, states = _scan(z=z, **operands)
    result = out if z is None else gated
    return (result, states[:, :, -1, 1::2]) if return_last_state else result


_state_update = make_op(
    "mamba_ssm::selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, "
    "Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias) -> Tensor",
    lambda state, x, *others: torch.empty_like(x),
)


@stub(
    "mamba_ssm",
    "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None",
)
def selective_state_update(dt_softplus: bool, state_batch_indices: Any, **operands: Any) -> Any:
    return _state_update(**operands)


# -- the scan in chunks (Mamba 2) ------------------------------------------------------------------


def _chunk_outputs(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *others: Any) -> Any:
    batch, _, heads, width = x.shape
    return torch.empty_like(x), x.new_empty((batch, heads, width, B.shape[-1]), dtype=torch.float32)


_CHUNKS = (
    "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, "
    "int chunk_size"
)
_chunks = make_op(f"mamba_ssm::chunk_scan({_CHUNKS}) -> (Tensor, Tensor)", _chunk_outputs)
_chunk_gradients = make_op(
    f"mamba_ssm::chunk_scan_backward({_CHUNKS}, Tensor out, Tensor grad) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradients_of_eight,
)


def _chunk_backward(saved: Saved, given: Given, grad: Tensor, of_states: Any) -> Any:
    inputs, out = saved[:8], saved[8]
    gradients = _chunk_gradients(*inputs, given[8], out, grad)
    found = (None if i is None else g for i, g in zip(inputs, gradients, strict=True))
    return *found, None


differentiable(_chunks, _chunk_backward, saves=lambda inputs, out: (*inputs[:8], out[0]))


_CHUNK_OPERANDS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "chunk_size")


@stub(
    "mamba_ssm",
    "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, "
    "cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float('inf')), return_final_states=False, "
    "**others",
)
def mamba_chunk_scan_combined(return_final_states: bool, **given: Any) -> Any:
    """The scan of [batch, steps, heads, width] in chunks, by products."""
    out, states = _chunks(*(given[name] for name in _CHUNK_OPERANDS))
    return (out, states) if return_final_states else out


# -- layers ----------------------------------------------------------------------------------------


class Mamba(nn.Module):
    """A layer of Mamba 1."""

    @counted("mamba_ssm", "Mamba")
    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        conv_bias: bool = True,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        made = {"device": device, "dtype": dtype}
        inner = expand * d_model
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else int(dt_rank)
        self.d_state = d_state
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias, **made)
        self.conv1d = nn.Conv1d(
            inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=conv_bias, **made
        )
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * d_state, bias=False, **made)
        self.dt_proj = nn.Linear(self.dt_rank, inner, bias=True, **made)
        self.A_log = nn.Parameter(torch.ones(inner, d_state, device=device))
        self.D = nn.Parameter(torch.ones(inner, device=device))
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **made)

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        """[batch, steps, width]."""
        batch, length, _ = hidden_states.shape
        x, z = self.in_proj(hidden_states).transpose(1, 2).contiguous().chunk(2, dim=1)
        x = _conv(x, self.conv1d.weight.squeeze(1), self.conv1d.bias)
        joint = self.x_proj(x.transpose(1, 2).reshape(batch * length, -1))
        dt, B, C = joint.split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = (self.dt_proj.weight @ dt.t()).view(-1, batch, length).transpose(0, 1)
        B, C = (t.view(batch, length, -1).transpose(1, 2).contiguous() for t in (B, C))
        A = -torch.exp(self.A_log.float())
        bias = self.dt_proj.bias.float()
        _, gated, _ = _scan(x, dt, A, B, C, self.D.float(), z, bias)
        out: Tensor = self.out_proj(gated.transpose(1, 2))
        return out


class Mamba2(nn.Module):
    """A layer of Mamba 2."""

    @counted("mamba_ssm", "Mamba2")
    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        chunk_size: int = 256,
        bias: bool = False,
        conv_bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.inner, self.headdim, self.chunk_size = expand * d_model, headdim, chunk_size
        self.groups, self.d_state, self.heads = ngroups, d_state, self.inner // headdim
        mixed = self.inner + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, self.inner + mixed + self.heads, bias=bias, **made)
        self.conv1d = nn.Conv1d(
            mixed, mixed, d_conv, groups=mixed, padding=d_conv - 1, bias=conv_bias, **made
        )
        self.dt_bias = nn.Parameter(torch.ones(self.heads, **made))
        self.A_log = nn.Parameter(torch.ones(self.heads, **made))
        self.D = nn.Parameter(torch.ones(self.heads, device=device))
        self.norm = nn.RMSNorm(self.inner, eps=1e-5, **made)
        self.out_proj = nn.Linear(self.inner, d_model, bias=bias, **made)

    def forward(self, u: Tensor, inference_params: Any = None, **others: Any) -> Tensor:
        """[batch, steps, width]."""
        batch, length, _ = u.shape
        shared = self.groups * self.d_state
        sizes = [self.inner, self.inner + 2 * shared, self.heads]
        z, mixed, dt = self.in_proj(u).split(sizes, dim=-1)
        weight = self.conv1d.weight.squeeze(1)
        mixed = _conv(mixed.transpose(1, 2), weight, self.conv1d.bias).transpose(1, 2)
        x, B, C = mixed.split([self.inner, shared, shared], dim=-1)
        x = x.reshape(batch, length, self.heads, self.headdim)
        B, C = (t.reshape(batch, length, self.groups, self.d_state) for t in (B, C))
        A = -torch.exp(self.A_log.float())
        y, _ = _chunks(x, dt, A, B, C, self.D, None, self.dt_bias, self.chunk_size)
        gated = self.norm(y.reshape(batch, length, self.inner) * F.silu(z))
        out: Tensor = self.out_proj(gated)
        return out


_CONVOLUTION = names(causal_conv1d_fn, causal_conv1d_update)

MODULES: dict[str, dict[str, Any]] = {
    "causal_conv1d": _CONVOLUTION,
    "causal_conv1d.causal_conv1d_interface": _CONVOLUTION,
    "mamba_ssm": names(Mamba, Mamba2, selective_scan_fn),
    "mamba_ssm.modules": {},
    "mamba_ssm.modules.mamba2": names(Mamba2),
    "mamba_ssm.modules.mamba_simple": names(Mamba),
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.selective_scan_interface": names(selective_scan_fn),
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layer_norm": names(layer_norm_fn, rms_norm_fn, RMSNorm=RmsNorm),
    "mamba_ssm.ops.triton.selective_state_update": names(selective_state_update),
    "mamba_ssm.ops.triton.ssd_combined": names(mamba_chunk_scan_combined),
}

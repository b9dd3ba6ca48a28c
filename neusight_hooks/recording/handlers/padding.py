"""Batches whose padding is left out: what nn.TransformerEncoder does with a padding mask in eval.

On a GPU the encoder's layers then run on a nested tensor, all tokens one behind the other. Here
that is a dense tensor of one row of tokens, which knows the lengths of the sequences in it; only
the layers' own op and the way back take it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.dispatch.op_cache import KnownOp
from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder
from neusight.recording.signature import signature_of
from neusight.recording.tensor import ForecastTensor

aten = torch.ops.aten


# -- a mask of truth values, made one of numbers and back (F._canonical_mask) ----------------------


@handles(aten.masked_fill_.Scalar)
def _masked_fill(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Values of floats are followed in small tensors only: where a known mask put -inf is
    recorded."""
    out = recorder.run_known(func, args, kwargs)
    mask, value = args[1], args[2]
    if value == -math.inf and isinstance(mask, ForecastTensor) and recorder.known.is_sure(mask):
        with recorder.mode.inside():
            # autograd counts this change of it when the op is done
            out.filled = (_version(out) + 1, recorder.known.of(mask))
    return out


def _version(tensor: Any) -> int:
    """Its version counter; -1 in inference mode, where there is none."""
    return -1 if tensor.is_inference() else int(tensor._version)


@handles(aten.logical_not.default)
def _logical_not(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    out = recorder.run_known(func, args, kwargs)
    version, filled = getattr(args[0], "filled", (None, None))
    now = _version(args[0])
    if filled is not None and now in (version, -1) and filled.shape == out.shape:
        with recorder.mode.inside():
            if recorder.known.may_hold(out):
                recorder.known.set(out, ~filled)
    return out


# -- what is padded, left out ---------------------------------------------------------------------


def _lengths(recorder: Recorder, mask: Any) -> tuple[int, ...] | None:
    """How many tokens each sequence has, if the mask is known and states so: ones, then zeros."""
    with recorder.mode.inside():
        if isinstance(mask, ForecastTensor):
            if not recorder.known.is_sure(mask):
                return None
            mask = recorder.known.of(mask)
        counts = mask.long().sum(1)
        places = torch.arange(mask.shape[1], device="cpu")
        is_left_aligned = bool((mask.bool() == (places < counts[:, None])).all())
        return tuple(counts.tolist()) if is_left_aligned else None


@handles(aten._nested_tensor_from_mask_left_aligned.default)
def _may_be_nested(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Whether what is padded may be left out, which the host waits for."""
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    recorder.record_handled(func, args, kwargs, None)
    recorder.wait("item")
    mask = args[1]
    if not recorder.known.is_sure(mask):
        recorder.warn_once(
            "nn.TransformerEncoder would leave out what src_key_padding_mask pads (nested "
            "tensors), but the mask is not known: here padded tokens are computed too, which takes "
            "longer the more there are"
        )
    return _lengths(recorder, mask) is not None


@handles(aten._nested_tensor_from_mask.default)
def _pack(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The tokens that a mask keeps, one behind the other; their number is read by the host."""
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    padded, mask = args[:2]
    lengths = _lengths(recorder, mask)
    if lengths is None:
        raise UnmappedOpError(
            f"{func._schema.name} at {call_site()} needs lengths that are not known. Keep the "
            "mask on the CPU until it is used, or use layout=torch.jagged."
        )
    out: Any = recorder.new_tensor((1, sum(lengths), padded.shape[2]), padded.dtype, padded)
    out.packed_lengths = lengths
    recorder.record_handled(func, args, kwargs, out)
    recorder.wait("item")
    return out


@handles(aten._transformer_encoder_layer_fwd.default)
def _layer(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    lengths = getattr(args[0], "packed_lengths", None)
    if lengths is None:
        return recorder.run_known(func, args, kwargs)
    out = _packed_like(recorder, args[0], lengths)
    _record_packed(recorder, func, args, kwargs, (out,), lengths)
    return out


@handles(aten._native_multi_head_attention.default)
def _attention_module(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """No weights where none were asked for; torch's fake kernel gives an empty tensor. Those of a
    packed batch are padded (native/transformers/cuda/attention.cu, 2.13)."""
    needs_weights = kwargs.get("need_weights", args[10] if len(args) > 10 else True)
    lengths = getattr(args[0], "packed_lengths", None)
    if lengths is None:
        out = recorder.run_known(func, args, kwargs)
        return out if needs_weights else (out[0], None)
    weights = None
    if needs_weights:
        average = kwargs.get("average_attn_weights", args[11] if len(args) > 11 else True)
        heads = () if average else (args[4],)
        scores = (len(lengths), *heads, max(lengths), max(lengths))
        weights = recorder.new_tensor(scores, args[0].dtype, args[0])
    found = (_packed_like(recorder, args[0], lengths), weights)
    _record_packed(recorder, func, args, kwargs, found, lengths)
    return found


def _packed_like(recorder: Recorder, source: Any, lengths: tuple[int, ...]) -> Any:
    out: Any = recorder.new_tensor(tuple(source.shape), source.dtype, source)
    out.packed_lengths = lengths
    return out


def _record_packed(
    recorder: Recorder,
    func: Any,
    args: Args,
    kwargs: Kwargs,
    out: tuple[Any, ...],
    lengths: tuple[int, ...],
) -> None:
    signature = signature_of(func, args, kwargs, out)
    packed = replace(
        signature, overload="packed", arguments=(*signature.arguments, ("lengths", lengths))
    )
    call = recorder.record_op(KnownOp(packed, needs_math=True))
    for tensor in out:
        if tensor is not None:
            recorder.storages.follow(tensor, call)


@handles(aten.to_padded_tensor.default)
def _unpack(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    packed = args[0]
    lengths = getattr(packed, "packed_lengths", None)
    if lengths is None:
        raise UnmappedOpError(
            f"{func._schema.name} at {call_site()} needs a nested tensor; what it got lost its "
            "lengths in an op that is not forecast for nested tensors of the strided layout. Use "
            "torch.nested with layout=torch.jagged."
        )
    size = args[2] if len(args) > 2 else kwargs.get("output_size")
    shape = tuple(size) if size else (len(lengths), max(lengths), packed.shape[2])
    out = recorder.new_tensor(shape, packed.dtype, packed)
    recorder.record_handled(func, args, kwargs, out)
    return out

"""Ops on numbers of few bits that torch has no fake kernels for, and what no GPU takes."""

from __future__ import annotations

from typing import Any

import torch

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.handlers.registry import Args, Kwargs, allocates, handles, overloads
from neusight.recording.handlers.shaped import padded_strides
from neusight.recording.recorder import Recorder

aten = torch.ops.aten

#: Rows that torch._int_mm needs at least, and what its other sizes are multiples of.
_LEAST_INTEGER_ROWS = 17
_INTEGER_ALIGNMENT = 8


@allocates(*overloads("_scaled_grouped_mm_v2"))
def _scaled_grouped_mm(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Of whatever scales: rows or columns of all groups, or a matrix for each group."""
    left, right = args[:2]
    offsets = args[8] if len(args) > 8 else kwargs.get("offs")
    dtype = (args[10] if len(args) > 10 else kwargs.get("out_dtype")) or torch.bfloat16
    if (left.dim() == 3 and right.dim() == 3) is not (offsets is None):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both")
    batch = [int(t.shape[0]) for t in (left, right) if t.dim() == 3]
    shape: tuple[int, ...]
    if offsets is None:
        shape = (batch[0], left.shape[1], right.shape[2])
    elif not batch:
        shape = (offsets.shape[0], left.shape[0], right.shape[1])
    else:
        shape = (left.shape[-2], right.shape[-1])
    return recorder.mode.new_tensor(shape, padded_strides(shape, dtype), dtype, left._fake_device)


@handles(*overloads("_int_mm"))
def _int_mm(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A product of integers, of sizes that cuBLASLt takes (cuda/Blas.cpp, _int_mm_out_cuda)."""
    left, right = args[:2]
    rows, inner, columns = int(left.shape[0]), int(left.shape[1]), int(right.shape[1])
    if rows < _LEAST_INTEGER_ROWS:
        raise RuntimeError(
            f"self.size(0) needs to be greater than {_LEAST_INTEGER_ROWS - 1}, but got {rows}"
        )
    for name, size in (("self.size(1)", inner), ("mat2.size(1)", columns)):
        if size <= 0 or size % _INTEGER_ALIGNMENT:
            raise RuntimeError(
                f"{name} needs to be greater than 0 and a multiple of {_INTEGER_ALIGNMENT}, but got"
                f" {size}"
            )
    return recorder.run_known(func, args, kwargs)


@allocates(*overloads("_fake_quantize_learnable_per_tensor_affine_backward"))
def _learnable_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of the data, and one number each for scale and zero point."""
    data, scale = args[1], args[2]
    numbers = (recorder.new_tensor((1,), scale.dtype, scale) for _ in range(2))
    return (recorder.new_tensor(tuple(data.shape), data.dtype, data), *numbers)


@allocates(*overloads("_fake_quantize_learnable_per_channel_affine_backward"))
def _channels_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of the data, the scales and the zero points of its channels."""
    return tuple(recorder.new_tensor(tuple(t.shape), t.dtype, t) for t in args[1:4])


@handles(*overloads("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"))
def _quantize(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    raise UnmappedOpError(
        f"{func._schema.name} at {call_site()}: tensors of quantized dtypes (torch.qint8) are not "
        "forecast on a GPU. Fake quantization is, and so are integer tensors with scales of their "
        "own (torch._int_mm, torch._scaled_mm, torchao)."
    )


@handles(
    *overloads("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"),
    *overloads("_histogramdd_from_bin_tensors"),
)
def _histogram(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    name = f"{func._schema.name}.{func._schema.overload_name}".rstrip(".")
    raise NotImplementedError(
        f"Could not run '{name}' with arguments from the 'CUDA' backend. It has a kernel for the "
        "CPU only (torch 2.13); torch.histc and torch.bincount run on a GPU."
    )

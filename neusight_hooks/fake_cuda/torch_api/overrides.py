"""Choices that torch makes in C++ only when it sees a device: attention, cuDNN RNNs, norms."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from neusight.fake_cuda.core import IS_CUDA_BUILD
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.attention_choice import (
    AttentionBackend,
    AttentionCall,
    choose_attention,
)
from neusight.fake_cuda.torch_api.jagged_attention import install_jagged_attention
from neusight.predictors.files import json_value
from neusight.predictors.gpu import GPU
from neusight.recording.dispatch.eager_errors import SCALAR_TYPES
from neusight.recording.handlers.registry import Args, Kwargs, allocates, handles, overloads
from neusight.recording.recorder import Recorder
from neusight.recording.recording import TensorSpec
from neusight.recording.signature import spec_of
from neusight.recording.tensor import ForecastTensor

aten = torch.ops.aten

#: The flash kernel wants head dimensions that are multiples of this (aten/.../cuda/attention.cu).
_FLASH_ALIGNMENT = 8

#: The efficient kernel wants rows of the mask aligned to this many elements (attention.cpp).
_MASK_ALIGNMENT = 16

#: torch.nn.attention.SDPBackend.
_SDP_BACKENDS: dict[int, AttentionBackend] = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}

#: cuDNN's modes (cudnnRNNMode_t).
_RNN_RELU, _RNN_TANH, _LSTM, _GRU = range(4)
_NUM_GATES = {_RNN_RELU: 1, _RNN_TANH: 1, _LSTM: 4, _GRU: 3}

#: What cuDNN keeps for backward, beside the gates, in units of one hidden state per step and
#: layer. An estimate: cudnnGetRNNTrainingReserveSize answers only on a GPU.
_RNN_RESERVE_STATES = 2


def attention_query(call: AttentionCall) -> str:
    """The recorded form of a question for an attention kernel."""
    return "attention_choice " + json.dumps(asdict(call), sort_keys=True)


def attention_query_result(device_query: str, gpu: GPU) -> str | None:
    """What `gpu` would choose; None if the question is another one, or damaged in its file."""
    head, _, text = device_query.partition(" ")
    if head != "attention_choice":
        return None
    try:
        return repr(_choose(_attention_call(json_value(text)), gpu))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _attention_call(fields: dict[str, Any]) -> AttentionCall:
    for name in ("query", "key", "value", "mask"):
        if fields[name] is not None:
            shape, stride, *rest = fields[name]
            fields[name] = TensorSpec(tuple(shape), tuple(stride), *rest)
    if fields["priority"] is not None:
        fields["priority"] = tuple(fields["priority"])
    return AttentionCall(**fields)


def _choose(call: AttentionCall, gpu: GPU) -> str:
    return str(
        choose_attention(
            call,
            compute_capability=gpu.compute_capability,
            cudnn_version=gpu.cudnn_version,
            vendor=gpu.vendor,
        )
    )


def install_overrides(
    patches: Patches, recorder: Recorder, gpu: GPU, on_query: Callable[[str, object], None]
) -> None:
    """Registers the choices of `gpu` on torch's dispatcher until `patches.restore()`."""
    torch_library: Any = torch.library  # has no annotations
    library = torch_library.Library("aten", "IMPL")
    patches.on_restore(library._destroy)

    def override(name: str, function: Callable[..., Any]) -> None:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(name, function, key)
        packet, _, overload = name.partition(".")
        recorder.take_over(getattr(getattr(aten, packet), overload or "default"), function)

    choices: dict[AttentionCall, str] = {}

    def chosen(call: AttentionCall) -> str:
        choice = choices.get(call)
        if choice is None:
            choice = choices[call] = _choose(call, gpu)
            on_query(attention_query(call), choice)
        elif recorder.mode.is_inside:  # what is compiled keeps its own questions
            on_query(attention_query(call), choice)
        return choice

    install_jagged_attention(patches, chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": on purpose
        override("scaled_dot_product_attention", _attention(chosen))
        for name, mode in (
            ("lstm", _LSTM),
            ("gru", _GRU),
            ("rnn_tanh", _RNN_TANH),
            ("rnn_relu", _RNN_RELU),
        ):
            override(f"{name}.input", partial(_rnn, mode, ()))
            override(f"{name}.data", _rnn_packed(mode))
        override("ctc_loss.Tensor", _ctc_loss_of_lists)
        override("one_hot", _one_hot)
        library.impl("_local_scalar_dense", _reader(recorder), "CUDA")
        if not IS_CUDA_BUILD:
            library.impl("_fused_rms_norm", _FusedRMSNorm.run, "AutogradCUDA")
            for name in ("silu_backward", "mish_backward"):
                # Having a kernel of its own keeps the op whole; the dispatch mode never reaches it.
                library.impl(name, _never_reached, "CUDA")


def _reader(recorder: Recorder) -> Callable[[Any], Any]:
    """Reads one value where torch does so in C++ and asks no dispatch mode: for a tensor, or an
    index, made of lists that hold single values (tensor_new.cpp)."""

    def read(tensor: Any) -> Any:
        if not isinstance(tensor, ForecastTensor):  # of a compiler: its graph ends here
            raise DataDependentOutputException(aten._local_scalar_dense.default)
        return recorder.dispatch(aten._local_scalar_dense.default, (tensor,), {})

    return read


def _one_hot(self: Any, num_classes: int = -1) -> Any:
    """As torch does for plain tensors; for subclasses and compilers it compares (Onehot.cpp)."""
    if self.dtype != torch.long:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if not self.numel() and num_classes < 1:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    if not isinstance(self, ForecastTensor) or self.fake_mode.is_inside:
        compared = self.unsqueeze(-1) == torch.arange(num_classes, device=self.device)
        return compared.to(torch.long)
    found = torch.zeros((*self.shape, num_classes), dtype=torch.long, device=self.device)
    return found.scatter_(-1, self.unsqueeze(-1), 1) if self.numel() else found


def _never_reached(*args: Any) -> Any:
    raise RuntimeError(
        "a forecast op reached a CUDA kernel; please report this as a bug of neusight"
    )


# -- attention ------------------------------------------------------------------------------------


def _spec_of(tensor: Any) -> TensorSpec:
    """The tensor's shape; while sizes are symbols, that of the call that is compiled."""
    spec = spec_of(tensor)
    return spec._replace(shape=_numbers(spec.shape), stride=_numbers(spec.stride))


def _numbers(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else int(size.node.hint or 1) for size in sizes)


def _attention(chosen: Callable[[AttentionCall], str]) -> Callable[..., Any]:
    usual_order = torch._C._get_sdp_priority_order()

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        _require_matching(query, key, value, attn_mask, is_causal=is_causal)
        tensors = (query, key, value)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        backends = torch._C
        call = AttentionCall(
            query=_spec_of(query),
            key=_spec_of(key),
            value=_spec_of(value),
            mask=None if attn_mask is None else _spec_of(attn_mask),
            mask_requires_grad=attn_mask is not None and attn_mask.requires_grad,
            requires_grad=needs_grad,
            dropout_p=dropout_p,
            is_causal=is_causal,
            enable_gqa=enable_gqa,
            deterministic=torch.are_deterministic_algorithms_enabled()
            and not torch.is_deterministic_algorithms_warn_only_enabled(),
            flash_enabled=backends._get_flash_sdp_enabled(),
            efficient_enabled=backends._get_mem_efficient_sdp_enabled(),
            math_enabled=backends._get_math_sdp_enabled(),
            cudnn_enabled=backends._get_cudnn_sdp_enabled(),
            priority=_own_priority(usual_order),
        )
        choice = chosen(call)
        if choice == "flash":
            return _run_flash(query, key, value, dropout_p, is_causal, scale)
        if choice in ("efficient", "cudnn"):
            mask = _float_mask(attn_mask, query, key, align=choice == "efficient")
            op = (
                aten._scaled_dot_product_efficient_attention.default
                if choice == "efficient"
                else aten._scaled_dot_product_cudnn_attention.default
            )
            return op(*tensors, mask, needs_grad, dropout_p, is_causal, scale=scale)[0]
        if choice == "math":
            return aten._scaled_dot_product_attention_math.default(
                *tensors, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        raise RuntimeError("No available kernel. Aborting execution.")

    return scaled_dot_product_attention


def _require_matching(query: Any, key: Any, value: Any, mask: Any, *, is_causal: bool) -> None:
    """RuntimeError as torch raises it, for operands that no kernel takes together
    (validate_sdpa_input, ATen/native/transformers/attention.cpp)."""
    operands = (query, key, value)
    expected = "Expected query, key, and value to"
    for what, found in (
        ("dtype", [operand.dtype for operand in operands]),
        ("device type", [operand.device for operand in operands]),
    ):
        if len({getattr(item, "type", item) for item in found}) > 1:
            name = what.partition(" ")[0]
            raise RuntimeError(
                f"{expected} have the same {what}, but got query.{name}: {found[0]} "
                f"key.{name}: {found[1]} and value.{name}: {found[2]} instead."
            )
    dims = [operand.dim() for operand in operands]
    if min(dims) < 2:
        raise RuntimeError(
            f"{expected} all be at least 2 dimensional, but got query.dim: {dims[0]}, "
            f"key.dim: {dims[1]} and value.dim: {dims[2]} instead."
        )
    if mask is None:
        return
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {query.dtype} instead."
        )
    if is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")


def _own_priority(usual_order: list[int]) -> tuple[AttentionBackend, ...] | None:
    """The order that the script set with sdpa_kernel(..., set_priority=True), if it did."""
    order = torch._C._get_sdp_priority_order()
    if order == usual_order:
        return None
    return tuple(_SDP_BACKENDS[number] for number in order if number in _SDP_BACKENDS)


def _run_flash(
    query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> Any:
    head_dim = query.shape[-1]
    padding = -head_dim % _FLASH_ALIGNMENT
    if padding:
        query, key, value = (
            torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value)
        )
        scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    out = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :head_dim] if padding else out


def _float_mask(mask: Any, query: Any, key: Any, *, align: bool) -> Any:
    """A boolean mask as the additive one that the kernels take, broadcast and aligned."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.where(
            mask,
            torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device),
            torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device),
        )
    length = mask.shape[-1]
    if align and length % _MASK_ALIGNMENT and length != 1:
        padded = torch.nn.functional.pad(mask, (0, -length % _MASK_ALIGNMENT))
        mask = padded[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


# -- recurrent networks ---------------------------------------------------------------------------


def _rnn_packed(mode: int) -> Callable[..., Any]:
    return lambda data, batch_sizes, *others: _rnn(mode, batch_sizes.tolist(), data, *others)


def _rnn(
    mode: int,
    batch_sizes: Sequence[int],
    data: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Any:
    hidden, cell = (hx[0], hx[1]) if mode == _LSTM else (hx, None)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        data, hidden = data.to(dtype), hidden.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        params = [parameter.to(dtype) for parameter in params]
    states = (hidden,) if cell is None else (hidden, cell)
    for name, tensors in (("hidden", states), ("parameter", params)):
        for tensor in tensors:
            _require_alike(data, tensor, name)
    num_directions = 2 if bidirectional else 1
    per_layer = len(params) // (num_layers * num_directions)
    hidden_size = params[0].shape[0] // _NUM_GATES[mode]
    proj_size = hidden.shape[2] if per_layer in (3, 5) else 0
    # All is cast already; a CUDA build's own autocast rule would ask cuDNN for its weight layout.
    with torch.autocast("cuda", enabled=False):
        out, hy, cy, _, _ = aten._cudnn_rnn.default(
            data, list(params), per_layer, None, hidden, cell, mode, hidden_size, proj_size,
            num_layers, batch_first, float(dropout), train, bidirectional, list(batch_sizes), None,
        )  # fmt: skip
    return (out, hy, cy) if mode == _LSTM else (out, hy)


def _require_alike(data: Any, tensor: Any, name: str) -> None:
    """Raises what cuDNN's networks say of a state or parameter (`check_attributes`, RNN.h)."""
    if tensor.device != data.device:
        raise RuntimeError(
            f"Input and {name} tensors are not at the same device, found input tensor at "
            f"{data.device} and {name} tensor at {tensor.device}"
        )
    if tensor.dtype != data.dtype:
        raise RuntimeError(
            f"Input and {name} tensors are not the same dtype, found input tensor with "
            f"{SCALAR_TYPES[data.dtype]} and {name} tensor with {SCALAR_TYPES[tensor.dtype]}"
        )


@allocates(aten._cudnn_rnn.default)
def _cudnn_rnn(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data, hidden, cell, mode, hidden_size, proj_size = args[0], args[4], args[5], *args[6:9]
    num_layers, batch_first, train, bidirectional = args[9], args[10], args[12], args[13]
    batch_sizes = args[14]
    num_directions = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * num_directions
    shape = (*data.shape[:-1], width)
    if batch_first and not batch_sizes:  # it lies as cuDNN made it, a time step after another
        stride = (width, data.shape[0] * width, 1)
        out = recorder.mode.new_tensor(shape, stride, data.dtype, data._fake_device)
    else:
        out = recorder.new_tensor(shape, data.dtype, data)
    hy = recorder.new_tensor(tuple(hidden.shape), hidden.dtype, data)
    cy = recorder.new_tensor(tuple(cell.shape) if cell is not None else (0,), hidden.dtype, data)
    rows = data.shape[0] if batch_sizes else data.shape[0] * data.shape[1]
    states = _NUM_GATES[mode] + _RNN_RESERVE_STATES
    reserve_bytes = (
        rows * hidden_size * num_directions * num_layers * states * data.element_size()
        if train
        else 0
    )
    reserve = recorder.new_tensor((reserve_bytes,), torch.uint8, data)
    weight_buffer = recorder.new_tensor((0,), data.dtype, data)
    return (out, hy, cy, reserve, weight_buffer)


@allocates(aten._cudnn_rnn_backward.default)
def _cudnn_rnn_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data, weights, hidden, cell, mask = args[0], args[1], args[4], args[5], args[-1]

    def like(tensor: Any, wanted: bool = True) -> Any:
        if tensor is None or not wanted:
            return None
        return recorder.new_tensor(tuple(tensor.shape), tensor.dtype, data)

    gradients = [like(weight) for weight in weights] if mask[3] else []
    return (like(data, mask[0]), like(hidden, mask[1]), like(cell, mask[2]), gradients)


@allocates(*overloads("cudnn_grid_sampler"))
def _cudnn_grid_sampler(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data, grid = args
    return recorder.new_tensor((*data.shape[:2], *grid.shape[1:-1]), data.dtype, data)


@allocates(*overloads("cudnn_grid_sampler_backward"))
def _cudnn_grid_sampler_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    return tuple(recorder.new_tensor(tuple(t.shape), t.dtype, t) for t in args[:2])


@handles(aten._cudnn_rnn_flatten_weight.default)
def _flatten_weight(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    # The weights become views of one buffer of the same total size: nothing to record.
    return recorder.new_tensor((0,), args[0][0].dtype, args[0][0])


@handles(*overloads("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"))
def _use_cudnn_ctc_loss(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return False  # the native kernel: cuDNN's wants deterministic mode and short targets on the CPU


def _ctc_loss_of_lists(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """As torch does for plain tensors; for subclasses it takes another way (LossCTC.cpp)."""
    return aten.ctc_loss.IntList(
        log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), blank, reduction,
        zero_infinity,
    )  # fmt: skip


@allocates(*overloads("_ctc_loss"), on_one_device=False)  # its lengths are on the CPU
def _ctc_loss(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    log_probs, targets, _, target_lengths = args[:4]
    num_steps, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    if isinstance(target_lengths, torch.Tensor):
        with recorder.mode.inside():
            target_lengths = recorder.values.read(target_lengths).reshape(-1).tolist()
    longest = targets.shape[1] if targets.dim() == 2 else max(target_lengths, default=0)
    loss = recorder.new_tensor((batch,), log_probs.dtype, log_probs)
    # A blank before, between and after all labels (aten/src/ATen/native/cuda/LossCTC.cu).
    log_alpha = recorder.new_tensor((batch, num_steps, 2 * longest + 1), log_probs.dtype, log_probs)
    return loss, log_alpha


@allocates(*overloads("_ctc_loss_backward"), on_one_device=False)
def _ctc_loss_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    return recorder.new_tensor(tuple(args[1].shape), args[1].dtype, args[1])


# -- SyncBatchNorm, whose ops only a GPU has ------------------------------------------------------


@allocates(aten.batch_norm_stats.default)
def _statistics(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data = args[0]
    return _float32(recorder, data, (data.shape[1],), 2)


@allocates(aten.batch_norm_gather_stats_with_counts.default)
def _gathered_statistics(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    means = args[1]
    return _float32(recorder, means, (means.shape[-1],), 2)


@allocates(aten.batch_norm_backward_reduce.default)
def _reduced_gradients(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    mean = args[2]
    return _float32(recorder, mean, tuple(mean.shape), 4)


def _float32(recorder: Recorder, like: Any, shape: tuple[int, ...], count: int) -> Any:
    return tuple(recorder.new_tensor(shape, torch.float32, like) for _ in range(count))


@allocates(aten.batch_norm_elemt.default, aten.batch_norm_backward_elemt.default)
def _like_the_input(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    return recorder.new_tensor(tuple(args[0].shape), args[0].dtype, args[0])


# -- fused RMSNorm --------------------------------------------------------------------------------


class _FusedRMSNorm(torch.autograd.Function):
    """`_fused_rms_norm` as one op with its own backward, as a CUDA build has it."""

    @staticmethod
    def run(input: Any, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Any:
        function: Any = _FusedRMSNorm  # torch leaves apply without annotations
        return function.apply(input, weight, list(normalized_shape), eps)

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, normalized_shape: list[int], eps: float | None
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = aten._fused_rms_norm.default(input, normalized_shape, weight, eps)
        ctx.save_for_backward(input, rstd, weight)
        ctx.normalized_shape = normalized_shape
        ctx.mark_non_differentiable(rstd)
        ctx.set_materialize_grads(False)  # a CUDA build makes no zeros for the gradient of rstd
        return out, rstd

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None
        input, rstd, weight = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[1]]
        with torch._C._AutoDispatchBelowAutograd():
            grad_input, grad_weight = aten._fused_rms_norm_backward.default(
                gradients[0], input, ctx.normalized_shape, rstd, weight, mask
            )
        return grad_input, grad_weight, None, None


@allocates(aten._fused_rms_norm.default)
def _fused_rms_norm(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data, normalized_shape = args[0], args[1]
    outer = tuple(data.shape[: data.dim() - len(normalized_shape)])
    out = recorder.new_tensor(tuple(data.shape), data.dtype, data)
    statistics = torch.float32 if data.dtype in (torch.float16, torch.bfloat16) else data.dtype
    rstd = recorder.new_tensor((*outer, *(1 for _ in normalized_shape)), statistics, data)
    return out, rstd


@allocates(aten._fused_rms_norm_backward.default)
def _fused_rms_norm_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    data, weight, mask = args[1], args[4], args[5]
    grad_input = recorder.new_tensor(tuple(data.shape), data.dtype, data) if mask[0] else None
    grad_weight = recorder.new_tensor(tuple(weight.shape), weight.dtype, data) if mask[1] else None
    return grad_input, grad_weight

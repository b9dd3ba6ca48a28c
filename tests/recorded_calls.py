"""Calls of ops of every kind, recorded once, for the tables of their kernels and inner calls.

Each call is real PyTorch, recorded in a forecast; `f`, `h`, `d` and `i` make tensors of float32,
float16, float64 and int64, `nhwc` one of images as channels_last, and `grad` the gradients of what
a function of tensors returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

import neusight
from neusight.recording.recording import Mark, OpCall

CALLS = """\
f(64, 256) @ f(256, 512)
f(64, 256).t() @ f(64, 512)
h(64, 256) @ h(512, 256).t()
torch.addmm(h(512), h(64, 256), h(256, 512))
torch.addmm(f(512), f(64, 256), f(256, 512), alpha=2)
torch.addmm(f(64, 512), f(64, 256), f(256, 512), beta=0.5)
F.linear(h(8, 64, 256), h(512, 256), h(512))
F.linear(h(1, 1, 4096), h(4096, 4096))
torch.bmm(h(12, 64, 128), h(12, 128, 32))
torch.baddbmm(f(12, 64, 32), f(12, 64, 128), f(12, 128, 32))
torch.addbmm(f(64, 32), f(12, 64, 128), f(12, 128, 32))
torch.mv(f(300, 200), f(200))
torch.addmv(f(300), f(300, 200), f(200))
torch.dot(f(5000), f(5000))
torch.vdot(f(5000), f(5000))
torch.cdist(f(100, 30), f(200, 30))
torch.cdist(f(100, 30), f(200, 30), p=1.0)
torch._int_mm(i8(64, 256), i8(256, 512))
torch._scaled_mm(e4(64, 256), e4(512, 256).t(), f(1), f(1), out_dtype=torch.bfloat16)
torch._scaled_mm(e4(64, 256), e4(512, 256).t(), f(64, 1), f(1, 512), out_dtype=torch.bfloat16)
torch.einsum("bij,bjk->bik", h(4, 64, 32), h(4, 32, 16))
grad(lambda x, w, b: F.linear(x, w, b), h(64, 256), h(512, 256), h(512))
grad(lambda x, w: torch.bmm(x, w), f(12, 64, 128), f(12, 128, 32))
sdpa(h(2, 8, 256, 64), h(2, 8, 256, 64), h(2, 8, 256, 64), is_causal=True)
sdpa(h(2, 8, 256, 64), h(2, 8, 300, 64), h(2, 8, 300, 64))
sdpa(f(2, 8, 256, 64), f(2, 8, 256, 64), f(2, 8, 256, 64))
sdpa(f(2, 8, 256, 64), f(2, 8, 256, 64), f(2, 8, 256, 64), f(2, 1, 256, 256))
sdpa(h(2, 8, 9, 64), h(2, 2, 300, 64), h(2, 2, 300, 64), enable_gqa=True)
sdpa(d(2, 8, 64, 64), d(2, 8, 64, 64), d(2, 8, 64, 64))
grad(lambda q: sdpa(q, q, q, is_causal=True), h(2, 8, 256, 64))
grad(lambda q: sdpa(q, q, q, dropout_p=0.1), f(2, 8, 256, 64))
nn.MultiheadAttention(64, 8, device="cuda").eval()(f(50, 4, 64), f(50, 4, 64), f(50, 4, 64))
no_grad(nn.MultiheadAttention(64, 8, device="cuda", batch_first=True).eval(), *[f(4, 50, 64)] * 3)
no_grad(nn.TransformerEncoderLayer(64, 8, 256, device="cuda", batch_first=True).eval(), f(4, 9, 64))
nn.LSTM(64, 128, 2, device="cuda")(f(4, 8, 64))
nn.LSTM(64, 128, bidirectional=True, device="cuda", batch_first=True)(f(8, 4, 64))
nn.GRU(64, 128, device="cuda", dtype=torch.half)(h(2, 8, 64))
nn.LSTMCell(64, 128, device="cuda")(f(8, 64))
nn.GRUCell(64, 128, device="cuda")(f(8, 64))
grad(lambda x: nn.LSTM(64, 128, 2, device="cuda")(x)[0], f(4, 8, 64))
grad(lambda x: nn.GRUCell(64, 128, device="cuda")(x), f(8, 64))
F.conv2d(f(8, 16, 32, 32), f(64, 16, 3, 3), f(64), padding=1)
F.conv2d(h(8, 16, 32, 32), h(64, 16, 3, 3), padding=1)
F.conv2d(nhwc(8, 16, 32, 32), nhwc(64, 16, 3, 3), stride=2, padding=1)
F.conv2d(h(8, 3, 224, 224), h(768, 3, 16, 16), h(768), stride=16)
F.conv2d(f(8, 32, 32, 32), f(32, 1, 3, 3), padding=1, groups=32)
F.conv2d(f(8, 32, 32, 32), f(64, 8, 3, 3), dilation=2, groups=4)
F.conv2d(f(8, 96, 30, 30), f(80, 96, 3, 3), padding=1)
F.conv2d(h(8, 96, 30, 30), h(80, 24, 3, 3), padding=1, groups=4)
grad(lambda x, w: F.conv2d(x, w, padding=1), f(8, 96, 30, 30), f(80, 96, 3, 3))
F.conv1d(f(8, 32, 1000), f(64, 32, 5))
F.conv3d(f(2, 16, 8, 32, 32), f(32, 16, 3, 3, 3))
F.conv_transpose2d(f(8, 64, 16, 16), f(64, 32, 4, 4), f(32), stride=2, padding=1)
grad(lambda x, w, b: F.conv2d(x, w, b, padding=1), f(8, 16, 32, 32), f(64, 16, 3, 3), f(64))
grad(lambda x, w: F.conv2d(x, w, stride=2), nhwc(8, 16, 32, 32), nhwc(64, 16, 3, 3))
grad(lambda x, w: F.conv2d(x, w, groups=32), f(8, 32, 32, 32), f(32, 1, 3, 3))
grad(lambda x, w: F.conv_transpose2d(x, w, stride=2), h(8, 64, 16, 16), h(64, 32, 4, 4))
torch.conv_tbc(f(50, 8, 16), f(3, 16, 32), f(32))
f(64, 256) + f(64, 256)
f(64, 256) + f(256)
f(64, 256) + f(256, 64).t()
f(64, 256) * 2
h(64, 256) + f(64, 256)
f(64, 255).add_(1)
f(63, 255) * f(63, 1)
f(64, 256)[:, ::2] * 2
torch.where(b(64, 256), f(64, 256), f(64, 256))
f(64, 256) ** 2
f(64, 256) ** 2.3
f(64, 256) > 0
F.gelu(h(64, 256))
F.silu(h(64, 256), inplace=True)
F.glu(f(64, 256))
F.dropout(f(64, 256), 0.1)
F.prelu(f(64, 256), f(256))
torch.addcmul(f(64, 256), f(64, 256), f(64, 256))
torch.lerp(f(64, 256), f(64, 256), 0.5)
torch.polar(f(64, 256), f(64, 256))
torch.randn(64, 256, device="cuda")
torch.rand(64, 256, device="cuda").bernoulli_(0.5)
torch.zeros(64, 256, device="cuda")
torch.arange(1000, device="cuda")
torch.linspace(0, 1, 1000, device="cuda")
torch.eye(100, device="cuda")
torch.tril(f(100, 100))
torch.isnan(h(64, 256)).any()
grad(lambda x: F.gelu(x), h(64, 256))
grad(lambda x: F.dropout(x, 0.1), f(64, 256))
grad(lambda x, w: F.prelu(x, w), f(64, 256), f(256))
F.mse_loss(f(64, 256), f(64, 256))
F.huber_loss(f(64, 256), f(64, 256))
F.binary_cross_entropy_with_logits(f(64, 256), f(64, 256))
f(64, 256).clone()
f(64, 256).t().contiguous()
f(64, 256).half()
f(64, 256).cpu()
f(64, 256, 7).transpose(0, 1).clone()
f(64, 256).double().copy_(f(256))
f(8, 16, 32, 32).to(memory_format=torch.channels_last)
torch.cat([f(64, 256), f(64, 100)], 1)
torch.cat([h(64, 256)] * 9)
torch.cat([nhwc(4, 8, 16, 16), nhwc(4, 24, 16, 16)], 1)
torch.stack([f(64, 256)] * 3)
torch.roll(f(64, 256), 3, 1)
torch.flip(f(64, 256), [0])
torch.rot90(f(64, 256))
F.pad(f(4, 8, 16, 16), (1, 2, 3, 4))
F.pad(f(4, 8, 16, 16), (1, 2, 3, 4), mode="reflect")
F.pad(f(4, 8, 16, 16), (1, 2, 3, 4), mode="replicate")
grad(lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), f(4, 8, 16, 16))
F.unfold(f(4, 8, 16, 16), 3)
F.fold(f(4, 72, 196), (16, 16), 3)
F.pixel_shuffle(f(4, 32, 16, 16), 2)
f(64, 256).repeat(2, 3)
f(64, 256).repeat_interleave(3, 0)
grad(lambda x: x[3], f(64, 256))
grad(lambda x: x[:, 5:9], f(64, 256))
torch.diag_embed(f(64, 16))
torch.block_diag(f(10, 10), f(20, 20))
F.embedding(i(8, 100), h(1000, 64))
F.embedding(i(8, 1), f(1000, 64))
F.embedding_bag(i(8, 100), f(1000, 64))
F.embedding_bag(i(8, 100), f(1000, 64), mode="max")
grad(lambda w: F.embedding(i(8, 100), w), h(1000, 64))
grad(lambda w: F.embedding(i(80, 100), w), f(1000, 64))
grad(lambda w: F.embedding_bag(i(8, 100), w), f(1000, 64))
f(1000, 64)[i(300)]
f(64, 1000)[:, i(300)]
f(1000, 64).index_put_((i(300),), f(300, 64))
f(1000, 64).index_put_((i(300),), f(300, 64), accumulate=True)
f(1000, 64).gather(1, i(1000, 30))
f(1000, 64).index_select(0, i(300))
torch.take(f(1000, 64), i(300))
f(1000, 64).scatter(1, i(1000, 30), 1.0)
h(1000, 64).scatter_add(1, i(1000, 30), h(1000, 30))
f(1000, 64).scatter_reduce(0, i(300, 64), f(300, 64), "amax")
f(1000, 64).index_add(0, i(300), f(300, 64))
f(1000, 64).index_copy(0, i(300), f(300, 64))
f(1000, 64).index_reduce(0, i(300), f(300, 64), "mean")
f(1000, 64).index_fill(0, i(300), 1.0)
f(1000, 64).masked_fill(b(1000, 64), 0)
f(1000, 64).masked_scatter(b(1000, 64), f(64000))
torch.searchsorted(f(1000), f(300))
torch.bucketize(f(300), f(1000))
torch.bincount(i(5000).zero_(), minlength=10)
torch.histc(f(5000), 10, 0, 1)
f(64, 256).sum()
h(64, 256).sum(-1)
f(64, 256).sum(0)
f(8, 64, 256).mean(1)
f(4000, 4000).sum()
f(64, 256).prod(1)
f(64, 256).amax(1)
f(64, 256).max(1)
f(64, 256).argmax()
f(64, 256).argmin(0)
f(64, 256).var(1)
f(64, 256).std()
torch.var_mean(f(64, 256), 0)
f(64, 256).norm()
torch.linalg.vector_norm(f(64, 256), 1, 1)
torch.logsumexp(f(64, 256), 1)
f(64, 256).cumsum(1)
f(64, 256).cumsum(0)
torch.logcumsumexp(f(64, 256), 1)
torch.cummax(f(64, 256), 1)
torch.count_nonzero(f(64, 256))
torch.equal(f(64, 256), f(64, 256))
torch.trace(f(64, 64))
F.nll_loss(f(64, 256), i(64))
F.cross_entropy(f(64, 256), i(64))
F.cross_entropy(h(4, 21, 32, 32), i(4, 32, 32))
grad(lambda x: F.cross_entropy(x, i(64)), f(64, 256))
grad(lambda x: F.multi_margin_loss(x, i(64)), f(64, 256))
F.ctc_loss(f(50, 8, 20).log_softmax(2), i(8, 10), (50,) * 8, (10,) * 8)
torch.pdist(f(100, 30))
torch.renorm(f(100, 30), 2, 0, 1.0)
F.softmax(f(64, 256), -1)
F.softmax(h(64, 3000), -1)
F.softmax(h(64, 3001), -1)
F.softmax(f(8, 64, 256), 1)
F.log_softmax(f(64, 3000), -1)
grad(lambda x: F.softmax(x, -1), h(64, 3000))
grad(lambda x: F.log_softmax(x, -1), f(64, 256))
grad(lambda x: F.softmax(x, 1), f(8, 64, 256))
F.softmax(h(64, 256), -1, dtype=torch.float32)
F.layer_norm(f(64, 256), (256,), f(256), f(256))
F.layer_norm(h(64, 50, 256), (50, 256))
F.rms_norm(h(64, 256), (256,), h(256))
F.group_norm(f(8, 32, 16, 16), 4, f(32), f(32))
F.batch_norm(f(8, 32, 16, 16), f(32), f(32), f(32), f(32), training=True)
F.batch_norm(h(8, 32, 16, 16), f(32), f(32), f(32), f(32), training=True)
F.batch_norm(nhwc(8, 32, 16, 16), f(32), f(32), f(32), f(32), training=True)
F.batch_norm(f(8, 32, 16, 16), f(32), f(32))
F.batch_norm(f(64, 256), f(256), f(256), training=True)
F.instance_norm(f(8, 32, 16, 16))
F.local_response_norm(f(8, 32, 16, 16), 5)
grad(lambda x, w, b: F.layer_norm(x, (256,), w, b), f(64, 256), f(256), f(256))
grad(lambda x, w: F.rms_norm(x, (256,), w), h(64, 256), h(256))
grad(lambda x, w: F.group_norm(x, 4, w, w), f(8, 32, 16, 16), f(32))
grad(lambda x, w: F.batch_norm(x, None, None, w, w, training=True), f(8, 32, 16, 16), f(32))
grad(lambda x, w: F.batch_norm(x, None, None, w, w, training=True), h(8, 32, 16, 16), f(32))
grad(lambda x, w: F.batch_norm(x, None, None, w, w, training=True), nhwc(8, 32, 16, 16), f(32))
grad(lambda x, w: F.batch_norm(x, f(32), f(32), w, w), f(8, 32, 16, 16), f(32))
grad(lambda v, g: torch._weight_norm(v, g, 0), f(64, 256), f(64, 1))
F.max_pool2d(f(8, 32, 16, 16), 3, 2, 1)
F.max_pool2d(nhwc(8, 32, 16, 16), 2)
F.avg_pool2d(f(8, 32, 16, 16), 3, 2)
F.avg_pool3d(f(2, 8, 8, 16, 16), 2)
F.adaptive_avg_pool2d(h(8, 32, 16, 16), 1)
F.adaptive_avg_pool2d(h(8, 32, 16, 16), 5)
F.adaptive_max_pool2d(f(8, 32, 16, 16), 5)
grad(lambda x: F.max_pool2d(x, 3, 2, 1), f(8, 32, 16, 16))
grad(lambda x: F.avg_pool2d(x, 3, 2), f(8, 32, 16, 16))
grad(lambda x: F.adaptive_avg_pool2d(x, 5), f(8, 32, 16, 16))
F.interpolate(f(4, 8, 16, 16), scale_factor=2)
F.interpolate(f(4, 8, 16, 16), scale_factor=2, mode="bilinear")
F.interpolate(nhwc(4, 8, 16, 16), scale_factor=2, mode="bicubic")
grad(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), f(4, 8, 16, 16))
F.grid_sample(f(4, 8, 16, 16), f(4, 20, 20, 2))
grad(lambda x, g: F.grid_sample(x, g), f(4, 8, 16, 16), f(4, 20, 20, 2))
F.affine_grid(f(4, 2, 3), (4, 8, 16, 16))
torch.sort(f(64, 256))
torch.sort(f(3, 100_000))
torch.sort(i(100_000))
torch.argsort(h(64, 3000))
torch.topk(f(64, 256), 5)
torch.topk(h(8, 100_000), 5)
torch.kthvalue(f(64, 256), 5)
torch.median(f(64, 256))
torch.median(f(64, 256), 1)
torch.mode(i(64, 256))
torch.unique(torch.arange(5000, device="cuda"))
torch.unique_consecutive(torch.arange(5000, device="cuda"))
torch.randperm(5000, device="cuda")
torch.randperm(500_000, device="cuda")
torch.multinomial(f(64, 256), 5)
torch.multinomial(f(64, 256), 1, replacement=True)
torch.fft.fft(f(64, 256))
torch.fft.rfft2(f(8, 64, 256))
torch.fft.irfft(c(64, 129))
torch.fft.fft(c(3, 1009))
torch.linalg.cholesky(f(8, 64, 64))
torch.linalg.solve(f(200, 200), f(200, 8))
torch.linalg.solve_triangular(f(200, 200), f(200, 8), upper=True)
torch.linalg.inv(f(200, 200))
torch.linalg.lstsq(f(200, 100), f(200, 8))
torch.cholesky_solve(f(200, 8), f(200, 200))
torch._foreach_add([f(64, 256), f(1000)], 1.0)
torch._foreach_mul_([f(64, 256), f(1000)], [f(64, 256), f(1000)])
torch._foreach_norm([f(64, 256), f(1000)])
torch._foreach_addcdiv_([f(64, 256)], [f(64, 256)], [f(64, 256)], 0.5)
torch._foreach_copy_([h(64, 256)], [f(64, 256)])
torch._foreach_max([f(64, 256), f(1000)])
step(torch.optim.SGD, momentum=0.9)
step(torch.optim.SGD, foreach=False, weight_decay=0.1)
step(torch.optim.SGD, fused=True, momentum=0.9)
step(torch.optim.AdamW)
step(torch.optim.AdamW, fused=True)
step(torch.optim.Adam, fused=True, amsgrad=True)
step(torch.optim.Adam, foreach=False)
step(torch.optim.Adagrad)
step(torch.optim.RMSprop)
torch.nn.utils.clip_grad_norm_([with_gradient(64, 256), with_gradient(1000)], 1.0)
torch._amp_foreach_non_finite_check_and_unscale_([f(64, 256)], f(1), f(1))
"""


class _Tensors(dict[str, Any]):
    """The names that the calls use."""

    def __init__(self) -> None:
        def maker(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
            return lambda *shape: torch.empty(*shape, dtype=dtype, device="cuda")

        super().__init__(torch=torch, F=F, nn=torch.nn, grad=_gradients, step=_step)
        self["no_grad"] = torch.no_grad()(lambda module, *inputs: module(*inputs))
        self["sdpa"] = F.scaled_dot_product_attention
        self.update(
            f=maker(torch.float32), h=maker(torch.half), d=maker(torch.double),
            i=maker(torch.long), i8=maker(torch.int8), b=maker(torch.bool),
            c=maker(torch.complex64), e4=maker(torch.float8_e4m3fn),
            nhwc=lambda *shape: torch.empty(
                *shape, dtype=torch.half, device="cuda", memory_format=torch.channels_last
            ),
            with_gradient=_with_gradient,
        )  # fmt: skip


def _gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    for tensor in inputs:
        tensor.requires_grad_()
    result = function(*inputs)
    torch.autograd.grad(result, inputs, torch.empty_like(result), allow_unused=True)


def _with_gradient(*shape: int) -> torch.Tensor:
    parameter = torch.empty(*shape, device="cuda", requires_grad=True)
    parameter.grad = torch.empty_like(parameter)
    return parameter


def _step(optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
    steps = optimizer([_with_gradient(64, 256), _with_gradient(1000)], lr=0.1, **options)
    steps.step()
    steps.step()


@cache
def recorded_calls() -> tuple[tuple[str, tuple[OpCall, ...]], ...]:
    """Each call with the ops that it dispatched."""
    calls = CALLS.splitlines()
    with warnings.catch_warnings(), neusight.forecast_on("H100") as forecast:
        warnings.simplefilter("ignore")  # of torch, about prototypes
        for call in calls:
            with torch.profiler.record_function(call):
                eval(call, _Tensors())
    found: list[tuple[str, list[OpCall]]] = []
    for step in forecast.recording.steps:
        for entry in step.entries:
            if isinstance(entry, Mark):
                is_call = entry.kind == "annotation_begin" and entry.name in calls
                found += [(entry.name, [])] if is_call else []
            elif isinstance(entry, OpCall):
                found[-1][1].append(entry)
    return tuple((call, tuple(ops)) for call, ops in found)

"""Whether a product is padded to aligned sizes: torch's own rule, with prices for its timings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch

from neusight.fake_cuda.patching import Patches
from neusight.ops import map_op
from neusight.predictors.gpu import GPU
from neusight.predictors.registry import find_predictor
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec
from neusight.timeline.host import PLAIN

#: What the question to the GPU begins with.
PADDING_QUERY = "pad_mm"

#: How many times as long as the padded product, its copies included, the product has to take
#: (torch/_inductor/fx_passes/pad_mm.py, is_padded_faster).
_LEAST_GAIN = 1.1
#: Of FLOP/s over bytes/s: above this share of it a product counts as bound by compute, and is timed
#: (is_mm_compute_bound).
_SHARE_OF_BALANCE = 0.5
#: GPUs from here on need no padding of bfloat16 for the sake of a long K (is_mm_compute_bound).
_HOPPER = (9, 0)
#: Elements that rows are aligned to (get_alignment_size_dtype).
_ALIGNMENT = {"float16": 8, "bfloat16": 8, "float32": 4}

_MM, _ADDMM, _BMM = "aten::mm", "aten::addmm", "aten::bmm"


class Product(NamedTuple):
    """A product that may be padded. `left_is_planned`: where it is made, it can be made padded, so
    that only the margin has to be written; so `right_is_planned`."""

    op: str
    left: TensorSpec
    right: TensorSpec
    added: TensorSpec | None = None
    left_is_planned: bool = False
    right_is_planned: bool = False
    allows_tf32: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns, and what is summed over."""
        return self.left.shape[-2], self.right.shape[-1], self.left.shape[-1]

    @property
    def margins(self) -> tuple[int, int, int]:
        """What padding adds to them; a size of 1 stays."""
        unit = _ALIGNMENT.get(self.left.dtype, 1)
        m, n, k = (0 if size == 1 else -size % unit for size in self.sizes)
        return m, n, k

    def device_query(self) -> str:
        """All of it in words, as a recording keeps it."""
        flags = (self.left_is_planned, self.right_is_planned, self.allows_tf32)
        added = "-" if self.added is None else _words(self.added)
        tensors = (_words(self.left), _words(self.right), added)
        return " ".join((PADDING_QUERY, self.op, *tensors, *(str(int(f)) for f in flags)))

    @classmethod
    def of(cls, device_query: str) -> Product:
        """The product of a question; ValueError where it is none.

        >>> product = Product("aten::mm", TensorSpec((8, 7), (7, 1), "float32"),
        ...                   TensorSpec((7, 8), (8, 1), "float32"))
        >>> Product.of(product.device_query()) == product
        True
        """
        _, op, left, right, added, *flags = device_query.split()
        planned_left, planned_right, tf32 = (flag == "1" for flag in flags)
        return cls(
            op, _spec(left), _spec(right), None if added == "-" else _spec(added),
            planned_left, planned_right, tf32,
        )  # fmt: skip


def _words(spec: TensorSpec) -> str:
    shape, stride = ("x".join(map(str, sizes)) for sizes in (spec.shape, spec.stride))
    return f"{spec.dtype}:{shape}:{stride}"


def _spec(words: str) -> TensorSpec:
    dtype, *sizes = words.split(":")
    shape, stride = (tuple(map(int, text.split("x"))) for text in sizes)
    return TensorSpec(shape, stride, dtype)


def install_padding(patches: Patches, gpu: GPU, on_query: Callable[[str, object], None]) -> None:
    """Inductor pads where the prices on `gpu` say so."""
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm

    def should_pad(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        if config.force_shape_pad:
            return True
        product = Product(
            f"aten::{op.__name__}",
            _hinted(mat1),
            _hinted(mat2),
            None if input is None else _hinted(input),
            pad_mm.should_exclude_padding_time(match, "mat1"),
            pad_mm.should_exclude_padding_time(match, "mat2"),
            mat1.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32,
        )
        answer = is_padded(product, gpu)
        on_query(product.device_query(), answer)
        return answer

    patches.set(pad_mm, "has_triton", lambda: True)
    patches.set(pad_mm, "_should_pad", should_pad)


def _hinted(tensor: Any) -> TensorSpec:
    """With the numbers that stand for sizes which are symbols."""
    from torch._inductor.fx_passes import pad_mm

    # Torch 2.11 has it under its first name.
    hints: Any = getattr(pad_mm, "hint_symbols", None) or vars(pad_mm)["realize_symbols"]
    shape, stride = map(tuple, map(hints, (tensor.size(), tensor.stride())))
    return TensorSpec(shape, stride, str(tensor.dtype).removeprefix("torch."))


def padding_query_result(device_query: str, gpu: GPU) -> str | None:
    """What `gpu` answers; None if the question is another one, or damaged."""
    if not device_query.startswith(PADDING_QUERY + " "):
        return None
    try:
        product = Product.of(device_query)
    except ValueError:
        return None
    return repr(is_padded(product, gpu))


def is_padded(product: Product, gpu: GPU) -> bool:
    """Whether torch would pad the product after it has timed both."""
    if not any(product.margins) or not _is_timed(product, gpu):
        return False
    plain_us = _time_us(_plain(product), product, gpu)
    return plain_us > _LEAST_GAIN * _time_us(_padded(product), product, gpu)


def _is_timed(product: Product, gpu: GPU) -> bool:
    m, n, k = product.sizes
    is_bfloat16 = product.left.dtype == "bfloat16"
    if is_bfloat16 and k > max(m, n) and gpu.compute_capability < _HOPPER:
        return True
    intensity = m * n * k / max(1, m * k + n * k + m * n)
    unit = {"float16": "fp16", "bfloat16": "bf16"}.get(product.left.dtype, "fp32")
    if unit == "fp32" and product.allows_tf32 and "tf32" in gpu.peak_tflops:
        unit = "tf32"
    balance = gpu.peak_flops(unit) / (gpu.bandwidth_gbps * 1e9)
    return intensity > _SHARE_OF_BALANCE * balance


def _plain(product: Product) -> Iterator[OpSignature]:
    yield _multiplied(product, product.left, product.right, product.added)


def _padded(product: Product) -> Iterator[OpSignature]:
    """What torch times of the padded form: the margins, then the product."""
    m, n, k = product.margins
    left, right = _grown(product.left, m, k), _grown(product.right, k, n)
    if m or k:
        yield _with_margin(product.left, left, is_planned=product.left_is_planned)
    if k or n:
        yield _with_margin(product.right, right, is_planned=product.right_is_planned)
    added = product.added
    if added is not None:
        for dim, margin in ((-1, n), (-2, m)):
            if margin and len(added.shape) >= -dim and added.shape[dim] != 1:
                zeros = _sized(added, dim, margin)
                larger = _sized(added, dim, added.shape[dim] + margin)
                yield OpSignature("aten::fill_", "Scalar", (("self", zeros),), (zeros,))
                arguments = (("tensors", (added, zeros)), ("dim", dim))
                yield OpSignature("aten::cat", "default", arguments, (larger,))
                added = larger
    yield _multiplied(product, left, right, added)


def _multiplied(
    product: Product, left: TensorSpec, right: TensorSpec, added: TensorSpec | None
) -> OpSignature:
    result = _dense((*left.shape[:-1], right.shape[-1]), left.dtype)
    if product.op == _ADDMM and added is not None:
        arguments: tuple[tuple[str, Argument], ...] = (
            ("self", added), ("mat1", left), ("mat2", right), ("beta", 1), ("alpha", 1),
        )  # fmt: skip
    else:
        arguments = (("self", left), ("mat2", right))
    return OpSignature(product.op, "default", arguments, (result,))


def _with_margin(before: TensorSpec, after: TensorSpec, *, is_planned: bool) -> OpSignature:
    """A larger copy; or zeros at the end of the dimensions that grow, in all of the others."""
    if not is_planned:
        growth = [b - a for a, b in zip(before.shape, after.shape, strict=True)]
        pad = tuple(size for grown in reversed(growth) for size in (0, grown))
        arguments = (("self", before), ("pad", pad))
        return OpSignature("aten::constant_pad_nd", "default", arguments, (after,))
    shape = tuple(b - a or b for a, b in zip(before.shape, after.shape, strict=True))
    margin = after._replace(shape=shape)
    return OpSignature("aten::fill_", "Scalar", (("self", margin),), (margin,))


def _grown(spec: TensorSpec, rows: int, columns: int) -> TensorSpec:
    *batch, m, n = spec.shape
    if not rows and not columns:
        return spec
    return _dense((*batch, m + rows, n + columns), spec.dtype)


def _sized(spec: TensorSpec, dim: int, size: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[dim] = size
    return _dense(tuple(shape), spec.dtype)


def _dense(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    stride = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return TensorSpec(shape, stride, dtype)


def _time_us(calls: Iterator[OpSignature], product: Product, gpu: GPU) -> float:
    """Kernel after kernel, as torch's benchmark has them."""
    math = MathMode(matmul_tf32=product.allows_tf32)
    kernels = [kernel for call in calls for kernel in map_op(call, math).kernels]
    times_us = [item.latency_us for item in find_predictor().predict(kernels, gpu)]
    return sum(times_us) + PLAIN.kernel_gap_us * (len(times_us) - 1)

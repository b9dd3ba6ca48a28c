"""Kernels of every class and kind, for the tables of prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import groupby, product
from typing import Any

from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    OUTER_SCALED,
    PEER_COPY,
    RECURRENT,
    SERIAL_SUM,
    ConvolutionSize,
    Kernel,
    KernelClass,
    Layout,
    Pass,
    Variant,
)
from neusight.predictors.predictor import Estimate, Predictor

MIB = 2**20
LAYOUTS: tuple[Layout, ...] = ("nt", "nn", "tn")


def products() -> Iterator[Kernel]:
    shapes = ((4096, 4096, 4096), (1, 4096, 4096), (40, 4096, 512), (256, 256, 65536))
    for (m, n, k), dtype in product(shapes, ("float64", "float32", "float16", "float8_e4m3fn")):
        yield Kernel.gemm(m, n, k, dtype=dtype)
    for m, n, k in shapes:
        yield Kernel.gemm(m, n, k, dtype="int8", out_dtype="int32")
        yield Kernel.gemm(m, n, k, dtype="float8_e4m3fn", out_dtype="bfloat16", name=OUTER_SCALED)
        yield Kernel.gemm(m, n, k, dtype="bfloat16", bias=True)
        for layout in LAYOUTS:
            yield Kernel.gemm(m, n, k, dtype="float32", compute="tf32", layout=layout)
    for batch, (m, n, k) in product((1, 48), ((1000, 777, 333), (300, 30, 510), (12, 9, 64))):
        for dtype, layout in zip(("bfloat16", "float32", "float16"), LAYOUTS, strict=True):
            yield Kernel.gemm(m, n, k, batch=batch, dtype=dtype, layout=layout)
    yield Kernel.gemm(64, 30522, 768, dtype="bfloat16", layout="nn")
    yield Kernel.gemm(64, 1024, 256, dtype="float32", name=RECURRENT)
    yield Kernel.gemm(2048, 2048, 2048, dtype="float4_e2m1fn_x2")
    packed: tuple[Variant, ...] = (
        "packed_tiles", "packed_16_rows", "packed_rows", "packed_outputs"
    )  # fmt: skip
    for variant, m in product(packed, (1, 24, 100, 2048)):
        weight = 4096 * 4096 * 9 // 16
        yield Kernel.gemm(m, 4096, 4096, dtype="float16", weight_bytes=weight, variant=variant)


def attentions() -> Iterator[Kernel]:
    shapes = (
        (8, 16, 16, 2048, 2048, 128), (2, 8, 2, 500, 700, 80), (4, 12, 12, 700, 200, 64),
        (16, 12, 12, 64, 64, 64), (300, 32, 32, 100, 128, 128),
    )  # fmt: skip
    for shape, backward in product(shapes, (False, True)):
        for name, dtype in (("flash_attention", "bfloat16"), ("efficient_attention", "float32")):
            causal = shape[3] != 100
            yield attention(*shape, causal=causal, dtype=dtype, backward=backward, name=name)
    others = ("flash_attention_3", "cudnn_attention", "flex_attention", "flash_attention_triton")
    for name, backward in product(others, (False, True)):
        yield attention(4, 16, 16, 1000, 1000, 128, causal=True, backward=backward, name=name)
    for name in ("cudnn_attention", "efficient_attention", "flash_attention"):
        yield attention(16, 32, 8, 1, 8192, 128, causal=False, name=name)
        yield attention(4, 12, 12, 1024, 1024, 96, causal=False, name=name)
        yield attention(4, 12, 12, 96, 1024, 512, causal=False, dtype="float16", name=name)
    yield attention(
        4, 12, 12, 1024, 96, 64, causal=False, name="efficient_attention", backward=True
    )
    yield attention(1, 32, 8, 1, 32768, 128, causal=False, name="flash_attention")
    for length, dim in ((100, 64), (128, 128), (129, 64)):  # torch's own, of one length
        kernel = attention(64, 16, 16, length, length, dim, causal=True, name="flash_attention")
        yield replace(kernel, layout="contiguous")
    for name, backward in product(("cudnn_attention", "efficient_attention"), (False, True)):
        yield attention(64, 16, 16, 100, 100, 64, causal=False, backward=backward, name=name)
    yield attention(4, 12, 12, 1024, 1024, 192, causal=False, name="efficient_attention")


def attention(*shape: int, **options: Any) -> Kernel:
    return Kernel.attention(*shape, **{"dtype": "bfloat16", **options})


def convolutions() -> Iterator[Kernel]:
    square = ConvolutionSize(32, 64, 128, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
    sizes = (
        square,
        square._replace(in_channels=100, out_channels=33, stride=(2, 2), output=(28, 28)),
        square._replace(in_channels=16, kernel=(4, 4), stride=(2, 2), output=(28, 28)),
        square._replace(in_channels=256, kernel=(1, 1)),
        square._replace(in_channels=512, out_channels=512, input=(7, 7), output=(7, 7), batch=4),
        square._replace(in_channels=256, out_channels=256, groups=4),
        square._replace(in_channels=256, out_channels=256, groups=4, kernel=(1, 1)),
        square._replace(in_channels=96, out_channels=96, groups=96, kernel=(7, 7)),
        square._replace(in_channels=96, out_channels=96, groups=96, kernel=(3, 5)),
        square._replace(in_channels=3, kernel=(16, 16), stride=(16, 16), input=(224, 224),
                        output=(14, 14), out_channels=768),
        square._replace(input=(16, 28, 28), output=(16, 28, 28), kernel=(3, 3, 3),
                        stride=(1, 1, 1), batch=2),
        square._replace(input=(16, 28, 28), output=(8, 14, 14), kernel=(2, 4, 4),
                        stride=(2, 2, 2), batch=2, in_channels=20),
        square._replace(input=(4000,), output=(2000,), kernel=(9,), stride=(2,)),
        square._replace(in_channels=40, stride=(2, 2), output=(28, 28)),
        square._replace(kernel=(6, 4), stride=(4, 2), output=(14, 28)),
        square._replace(in_channels=96, out_channels=96, groups=16),
        square._replace(in_channels=3, kernel=(16, 16), stride=(16, 16), input=(224, 224),
                        output=(14, 14), out_channels=100, batch=128),
        square._replace(in_channels=3, kernel=(16, 16), stride=(16, 16), input=(224, 224),
                        output=(14, 14), out_channels=768, batch=4),
    )  # fmt: skip
    directions: tuple[Pass, ...] = ("forward", "data_gradient", "weight_gradient")
    for size, direction in product(sizes, directions):
        directed = size._replace(direction=direction)
        yield Kernel.convolution(directed, dtype="float32", compute="tf32")
        yield Kernel.convolution(directed, dtype="float32", compute="tf32", layout="channels_last")
        yield Kernel.convolution(directed, dtype="float16", layout="channels_last")
        if size.groups == 1:
            yield Kernel.convolution(directed, dtype="float32")
    for variant in ("cudnn_9_1", "dilated", "fastest"):
        for size, direction in product(sizes[1::4], directions):
            directed = size._replace(direction=direction)
            layout: Any = "channels_last" if size.groups > 1 else "contiguous"
            yield Kernel.convolution(
                directed, dtype="float32", compute="tf32", layout=layout, variant=variant
            )
    for channels, groups in product((64, 256), (4, 16)):
        volume = sizes[10]._replace(in_channels=channels, out_channels=channels, groups=groups)
        yield Kernel.convolution(volume, dtype="float32", compute="tf32", layout="channels_last")


#: What a row of the table of kernels bound by memory is, without its size and dtype.
MEMORY_BOUND: tuple[tuple[KernelClass, str, dict[str, Any]], ...] = (
    (KernelClass.ELEMENTWISE, "add", {}),
    (KernelClass.ELEMENTWISE, "add", {"layout": "scalar"}),
    (KernelClass.ELEMENTWISE, "add", {"layout": "scalar", "variant": "mixed_types"}),
    (KernelClass.ELEMENTWISE, "add", {"layout": "strided"}),
    (KernelClass.ELEMENTWISE, "pow", {}),
    (KernelClass.ELEMENTWISE, "gelu", {}),
    (KernelClass.ELEMENTWISE, "gelu_backward", {}),
    (KernelClass.ELEMENTWISE, "silu", {}),
    (KernelClass.ELEMENTWISE, "normal_", {"variant": "normal_numbers"}),
    (KernelClass.ELEMENTWISE, "dropout", {"variant": "dropout"}),
    (KernelClass.ELEMENTWISE, "upsample", {"variant": "nearest"}),
    (KernelClass.ELEMENTWISE, "upsample", {"variant": "nearest", "layout": "channels_last"}),
    (KernelClass.ELEMENTWISE, "upsample", {"variant": "bilinear"}),
    (KernelClass.ELEMENTWISE, "upsample", {"variant": "bilinear", "layout": "channels_last"}),
    (KernelClass.ELEMENTWISE, "fused", {"variant": "fused", "along_columns": True}),
    (KernelClass.ELEMENTWISE, "batch_norm_elemt", {"variant": "by_plane"}),
    (KernelClass.ELEMENTWISE, "batch_norm_elemt", {"variant": "by_channel"}),
    (KernelClass.ELEMENTWISE, "batch_norm_backward", {"variant": "by_channel"}),
    (KernelClass.REDUCTION, "sum", {}),
    (KernelClass.REDUCTION, "sum", {"layout": "strided"}),
    (KernelClass.REDUCTION, "sum", {"along_columns": True}),
    (KernelClass.REDUCTION, "amax", {"variant": "extremum"}),
    (KernelClass.REDUCTION, "argmax", {"variant": "with_index"}),
    (KernelClass.REDUCTION, "argmax", {"variant": "with_index", "along_columns": True}),
    (KernelClass.REDUCTION, "cumsum", {"variant": "scan"}),
    (KernelClass.REDUCTION, "max_pool", {"variant": "pool"}),
    (KernelClass.REDUCTION, "max_pool_backward", {"variant": "max_pool_gradient"}),
    (KernelClass.REDUCTION, "avg_pool_backward", {"variant": "average_pool_gradient"}),
    (KernelClass.REDUCTION, "fused", {"variant": "fused", "bytes_read_again": 48 * MIB}),
    (KernelClass.REDUCTION, "fused", {"variant": "fused", "along_columns": True}),
    (KernelClass.REDUCTION, SERIAL_SUM, {"layout": "strided"}),
    (KernelClass.REDUCTION, SERIAL_SUM, {}),
    (KernelClass.REDUCTION, "scan", {"variant": "state_space", "num_instructions": 10**9}),
    (KernelClass.SOFTMAX, "softmax", {"variant": "softmax"}),
    (KernelClass.SOFTMAX, "softmax", {"variant": "softmax", "layout": "strided"}),
    (KernelClass.SOFTMAX, "softmax", {"variant": "softmax", "layout": "scalar"}),
    (KernelClass.SOFTMAX, "softmax_b", {"variant": "softmax", "is_backward": True}),
    (KernelClass.SOFTMAX, "log_softmax_b", {"variant": "log_softmax", "is_backward": True}),
    (KernelClass.NORMALIZATION, "layer_norm", {"variant": "layer_norm"}),
    (KernelClass.NORMALIZATION, "layer_norm_b", {"variant": "layer_norm", "is_backward": True}),
    (KernelClass.NORMALIZATION, "layer_norm_b", {"variant": "layer_norm", "is_backward": True,
                                                 "along_columns": True}),
    (KernelClass.NORMALIZATION, "rms_norm", {"variant": "rms_norm"}),
    (KernelClass.NORMALIZATION, "rms_norm_b", {"variant": "rms_norm", "is_backward": True}),
    (KernelClass.NORMALIZATION, "rms_norm_b", {"variant": "rms_norm", "is_backward": True,
                                               "along_columns": True}),
    (KernelClass.NORMALIZATION, "group_norm", {"variant": "group_norm"}),
    (KernelClass.NORMALIZATION, "weight_norm", {"variant": "weight_norm"}),
    (KernelClass.NORMALIZATION, "batch_norm", {"variant": "batch_norm"}),
    (KernelClass.NORMALIZATION, "batch_norm", {"variant": "batch_norm", "along_columns": True}),
    (KernelClass.NORMALIZATION, "batch_norm", {"variant": "batch_norm", "layout": "scalar"}),
    (KernelClass.NORMALIZATION, "batch_norm_b", {"variant": "batch_norm", "is_backward": True}),
    (KernelClass.NORMALIZATION, "batch_norm_b", {"variant": "batch_norm", "is_backward": True,
                                                 "along_columns": True}),
    (KernelClass.NORMALIZATION, "sums", {"variant": "batch_norm_sums"}),
    (KernelClass.NORMALIZATION, "sums", {"variant": "batch_norm_sums", "along_columns": True}),
    (KernelClass.NORMALIZATION, "sums_b", {"variant": "batch_norm_sums", "along_columns": True,
                                           "is_backward": True}),
    (KernelClass.NORMALIZATION, "gradients", {"variant": "batch_norm_gradients",
                                              "is_backward": True}),
    (KernelClass.GATHER, "gather", {}),
    (KernelClass.GATHER, "gather", {"layout": "scalar"}),
    (KernelClass.GATHER, "index_select", {"variant": "whole_rows"}),
    (KernelClass.GATHER, "index_select", {"variant": "small_index"}),
    (KernelClass.GATHER, "index_add", {"scatters": True}),
    (KernelClass.COPY, "copy", {}),
    (KernelClass.COPY, "copy", {"layout": "scalar"}),
    (KernelClass.COPY, "copy", {"layout": "strided", "bytes_in_place": 4096}),
    (KernelClass.COPY, "nchw_to_nhwc", {}),
    (KernelClass.COPY, "cat", {"variant": "cat", "num_parts": 12, "widest_part": MIB}),
    (KernelClass.COPY, "cat", {"variant": "cat", "num_parts": 3, "widest_part": 5 * MIB,
                               "layout": "channels_last"}),
    (KernelClass.COPY, "cat", {"variant": "cat", "num_parts": 3, "widest_part": MIB,
                               "layout": "scalar"}),
    (KernelClass.COPY, "memcpy_d2d", {}),
    (KernelClass.COPY, "memset", {}),
    (KernelClass.COPY, "memcpy_h2d", {}),
    (KernelClass.COPY, PEER_COPY, {}),
    (KernelClass.SORT, "sort", {}),
    (KernelClass.SORT, "radix_sort_single_tile", {}),
    (KernelClass.SORT, "radix_sort_pass", {}),
    (KernelClass.SORT, "sort", {"variant": "sorted_rows"}),
    (KernelClass.SORT, "topk", {"variant": "top_k", "selects": True}),
    (KernelClass.SORT, "topk", {"variant": "top_k_pass", "selects": True}),
    (KernelClass.SORT, "kthvalue", {"selects": True}),
    (KernelClass.OPTIMIZER, "multi_tensor_adamw", {}),
    (KernelClass.OPTIMIZER, "fused_adamw", {"variant": "fused_adam"}),
    (KernelClass.UNKNOWN, "factorization", {"num_steps": 300}),
    (KernelClass.CUSTOM, "custom", {}),
)  # fmt: skip


def memory_bound() -> Iterator[Kernel]:
    """Each in a few rows, in more than the SMs hold, and in many short ones."""
    sizes = ((12, 30_000, "float32"), (3000, 4096, "bfloat16"), (200_000, 100, "float32"))
    for row, size in product(MEMORY_BOUND, sizes):
        yield _rows(*row, *size)
    for width in (2**18, 2**20, 2**22, 2**24):
        yield moving(KernelClass.REDUCTION, "sum", 1, width, "float32", writes=1 / width)


def rows() -> Iterator[Kernel]:
    """Those that depend on how many rows there are, of what width, in more sizes."""
    sizes = (
        (7, 2_000_000, "float32"), (80_000, 21, "bfloat16"), (1001, 1030, "bfloat16"),
        (64, 200, "float32"), (300, 1028, "float32"), (500, 100_000, "bfloat16"),
    )  # fmt: skip
    classes = ("reduction", "softmax", "normalization", "sort")
    for row, size in product(MEMORY_BOUND, sizes):
        if row[0].value in classes:
            yield _rows(*row, *size)


def _rows(
    kernel_class: KernelClass, name: str, traits: dict[str, Any], count: int, width: int, dtype: str
) -> Kernel:
    return moving(kernel_class, name, count, width, dtype, reads=2.0, **traits)


def moving(
    kernel_class: KernelClass, name: str, rows: int, width: int, dtype: str = "bfloat16", *,
    reads: float = 1.0, writes: float = 1.0, **traits: Any,
) -> Kernel:  # fmt: skip
    """A kernel bound by memory, which reads and writes that many tensors of its rows."""
    num_bytes = rows * width * DTYPE_BYTES[dtype]
    return Kernel.rows(
        kernel_class, name, rows, width, dtype=dtype, bytes_read=round(reads * num_bytes),
        bytes_written=round(writes * num_bytes), **traits,
    )  # fmt: skip


def label(kernel: Kernel) -> str:
    traits = ("is_backward", "along_columns", "scatters", "selects")
    words: Iterable[object] = (
        kernel.name, kernel.dtype, kernel.compute if kernel.compute != "fp32" else "",
        kernel.layout if kernel.layout != "contiguous" else "",
        kernel.variant if kernel.variant != kernel.name else "",
        *(trait.partition("_")[2] or trait for trait in traits if getattr(kernel, trait)),
        "x".join(_part(part) for part in kernel.size),
    )  # fmt: skip
    return " ".join(str(word) for word in words if word)


def _part(value: object) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    return text.strip("()").replace(", ", ",")


def described(kernels: Iterable[Kernel]) -> Iterator[str]:
    """Equal ones after each other once: class, name, size, types, FLOPs, bytes read and written,
    and what most kernels leave as it is by name."""
    for kernel, equal in groupby(kernels):
        count = sum(1 for _ in equal)
        types = [kernel.dtype, kernel.out_dtype if kernel.out_dtype != kernel.dtype else ""]
        types.append(kernel.compute if kernel.compute != "fp32" else "")
        moved = f"{kernel.flops} {kernel.bytes_read}+{kernel.bytes_written}"
        layout = kernel.layout if kernel.layout != "contiguous" else ""
        name = kernel.name if kernel.name != kernel.kernel_class.value else ""
        size = "x".join(_part(part) for part in kernel.size)
        words = (kernel.kernel_class.value, name, kernel.variant, layout, size, *types, moved)
        rest = (
            f"{trait}={_part(getattr(kernel, trait))}" for trait in TRAITS if getattr(kernel, trait)
        )
        times = f" ({count} times)" if count > 1 else ""
        yield "  " + " ".join(word for word in (*words, *rest) if word) + times


#: The fields that most kernels leave as they are.
TRAITS = [item.name for item in fields(Kernel) if item.default in (0, False, ())]


def estimates(predictor: Predictor, kernels: Sequence[Kernel], gpu: str) -> dict[Kernel, Estimate]:
    """The estimates of those that the GPU can run: which of them depends on the unit."""
    found: dict[Kernel, Estimate] = {}
    for compute in sorted({kernel.compute for kernel in kernels}):
        group = [kernel for kernel in kernels if kernel.compute == compute]
        with suppress(UnsupportedKernelError):
            found.update(zip(group, predictor.predict(group, find_gpu(gpu)), strict=True))
    return found


TABLES = (products, attentions, convolutions, memory_bound, rows)

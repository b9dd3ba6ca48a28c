"""What the physics alone makes of kernels of every class, on GPUs of every generation.

The table is small enough to review; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it. A change of a constant
or a formula shows which kernels it moves, and by how much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.tiled import Tiled
from places import GOLDEN_FILES

GPUS = ("P100", "V100", "T4", "A100", "RTX-3090", "L4", "H100", "B200", "MI100", "MI300X")
MIB = 2**20


def products() -> Iterator[Kernel]:
    for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn"):
        yield Kernel.gemm(4096, 4096, 4096, dtype=dtype)
        yield Kernel.gemm(8, 4096, 4096, dtype=dtype)
    yield Kernel.gemm(1000, 777, 333, dtype="bfloat16")
    yield Kernel.gemm(128, 128, 65536, dtype="bfloat16", layout="tn")
    yield Kernel.gemm(2048, 2048, 64, dtype="bfloat16", layout="nn")
    yield Kernel.gemm(4096, 4096, 4096, dtype="float32", compute="tf32")
    yield Kernel.gemm(256, 256, 64, batch=96, dtype="float32")
    yield Kernel.gemm(64, 64, 64, batch=16, dtype="float32")
    yield Kernel.gemm(512, 512, 64, batch=96, dtype="bfloat16", layout="nn")
    yield Kernel.gemm(64, 64, 64, dtype="float64")


def attentions() -> Iterator[Kernel]:
    for backward in (False, True):
        yield Kernel.attention(
            8, 16, 16, 2048, 2048, 128, causal=True, dtype="bfloat16", backward=backward
        )
        yield Kernel.attention(
            2, 8, 2, 500, 500, 64, causal=False, dtype="float16", backward=backward
        )
        yield Kernel.attention(
            4, 12, 12, 512, 512, 64, causal=True, dtype="float32", backward=backward,
            name="efficient_attention",
        )  # fmt: skip
    for name in ("flash_attention", "flash_attention_3", "cudnn_attention"):
        yield Kernel.attention(16, 32, 8, 1, 8192, 128, causal=False, dtype="bfloat16", name=name)
    yield Kernel.attention(1, 32, 8, 1, 32768, 128, causal=False, dtype="bfloat16")


def convolutions() -> Iterator[Kernel]:
    for direction in ("forward", "data_gradient", "weight_gradient"):
        common = ConvolutionSize(32, 64, 128, 1, (56, 56), (56, 56), (3, 3), (1, 1), direction)
        yield Kernel.convolution(common, dtype="float32")
        yield Kernel.convolution(common, dtype="float16", layout="channels_last")
        grouped = common._replace(in_channels=256, out_channels=256, groups=4, stride=(2, 2),
                                  output=(28, 28))  # fmt: skip
        yield Kernel.convolution(grouped, dtype="float16")
        depthwise = common._replace(in_channels=96, out_channels=96, groups=96, kernel=(7, 7))
        yield Kernel.convolution(depthwise, dtype="float32")


def memory_bound() -> Iterator[Kernel]:
    for size in (1024, MIB, 64 * MIB):
        yield Kernel.elementwise("add", size, dtype="float32", num_inputs=2)
    yield Kernel.elementwise("gelu", 16 * MIB, dtype="bfloat16")
    for kernel_class, name, options in (
        (KernelClass.REDUCTION, "sum", {}),
        (KernelClass.REDUCTION, "sum", {"layout": "strided"}),
        (KernelClass.REDUCTION, "cumsum", {}),
        (KernelClass.SOFTMAX, "softmax", {"variant": "softmax"}),
        (KernelClass.SOFTMAX, "softmax", {"variant": "softmax", "layout": "strided"}),
        (KernelClass.SOFTMAX, "softmax_backward", {"variant": "softmax", "is_backward": True}),
        (KernelClass.NORMALIZATION, "layer_norm", {"variant": "layer_norm"}),
        (KernelClass.NORMALIZATION, "layer_norm_backward", {"variant": "layer_norm",
                                                            "is_backward": True}),
        (KernelClass.NORMALIZATION, "batch_norm_statistics", {"variant": "batch_norm"}),
        (KernelClass.GATHER, "index_select", {}),
        (KernelClass.GATHER, "index_add", {"scatters": True}),
        (KernelClass.COPY, "copy", {}),
        (KernelClass.COPY, "copy", {"layout": "strided"}),
        (KernelClass.COPY, "memcpy_d2d", {}),
        (KernelClass.COPY, "memset", {}),
        (KernelClass.COPY, "memcpy_h2d", {}),
        (KernelClass.COPY, "memcpy_d2h", {}),
        (KernelClass.SORT, "sort", {}),
        (KernelClass.SORT, "topk", {"selects": True}),
        (KernelClass.OPTIMIZER, "multi_tensor_adamw", {}),
        (KernelClass.UNKNOWN, "unknown", {}),
        (KernelClass.CUSTOM, "custom", {}),
    ):  # fmt: skip
        for rows, width in ((64, 512), (8192, 4096)):
            num_bytes = 4 * rows * width
            yield Kernel.rows(
                kernel_class, name, rows, width, dtype="float32",
                bytes_read=num_bytes, bytes_written=num_bytes, **options,
            )  # fmt: skip


def collectives() -> Iterator[Kernel]:
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for num_bytes, ranks, nodes in ((4096, 8, 1), (256 * MIB, 8, 1), (256 * MIB, 32, 4)):
            yield Kernel.collective(op, num_bytes, ranks, num_nodes=nodes)
    yield Kernel.collective("all_reduce", 64 * MIB, 1)


def label(kernel: Kernel) -> str:
    words = [kernel.name, kernel.dtype, kernel.compute, kernel.layout, kernel.variant]
    words += [word for word in ("scatters", "selects") if getattr(kernel, word)]
    sizes = (str(part).strip("()").replace(", ", ",") for part in kernel.size)
    return " ".join(word for word in (*words, "x".join(sizes)) if word)


def table() -> str:
    """A kernel a line, a GPU a column: nanoseconds, the interval's half width and the bound."""
    kernels = [*products(), *attentions(), *convolutions(), *memory_bound(), *collectives()]
    lines = [f"{'':<96}" + "".join(f"{name:>18}" for name in GPUS)]
    for kernel in kernels:
        lines.append(f"{label(kernel):<96}" + "".join(f"{cell(kernel, name):>18}" for name in GPUS))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def cell(kernel: Kernel, name: str) -> str:
    try:
        (estimate,) = Tiled(correction=None).predict([kernel], find_gpu(name))
    except UnsupportedKernelError:
        return "-"
    spread = estimate.high_us / estimate.latency_us - 1
    return f"{estimate.latency_us * 1000:.0f} {spread:.2f} {estimate.bound[:2]}"


def test_the_physics_prices_kernels_as_the_golden_table_has_them() -> None:
    path = GOLDEN_FILES / "physics_prices.txt"

    prices = table()

    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        path.write_text(prices)
    assert prices == path.read_text()

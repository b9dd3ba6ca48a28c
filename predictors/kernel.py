"""What a GPU kernel is: its class, its problem size, its types, its FLOPs and its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Of a kernel that moves bytes: "contiguous" where one flat loop takes several elements at once,
#: "scalar" where it takes one at a time, as it computes indices or casts but neighbours stay
#: neighbours, "strided" where neighbours of one tensor lie apart in another, as transposed.
Layout = Literal["nt", "nn", "tn", "tt", "channels_last", "contiguous", "scalar", "strided", ""]
Pass = Literal["forward", "data_gradient", "weight_gradient"]

#: Which of its class a kernel is: of attention the library, of norms and softmax the kind. Batch
#: norm's sums and statistics pass over their input once, what joins those of several GPUs does not.
#: "cudnn_9_1": a convolution of groups, in three dimensions or of patches (forward) by a cuDNN
#: before 9.8; "dilated": one with a dilation; "fastest": one whose algorithm was found by trial
#: (torch.backends.cudnn.benchmark).
#: Products whose weight is unpacked inside the kernel, by the rows that share one unpacked weight:
#: "packed_tiles" up to 64 (Marlin, CUTLASS), "packed_16_rows" (tinygemm), "packed_rows" one;
#: "packed_outputs" by a thread an output.
#: All-reduces in which each rank reads the others' memory: "one_shot" all of it, "two_shot" a part
#: of the sums and then the others' parts.
Variant = Literal[
    "",
    "flash_attention",
    "flash_attention_3",
    "flash_attention_4",
    "cudnn_attention",
    "efficient_attention",
    "flex_attention",
    "flash_attention_triton",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "weight_norm",
    "batch_norm",
    "batch_norm_sums",
    "batch_norm_gradients",
    "batch_norm_join",
    "by_plane",
    "by_channel",
    "bilinear",
    "nearest",
    "softmax",
    "log_softmax",
    "cat",
    "mixed_types",
    "small_index",
    "whole_rows",
    "with_index",
    "extremum",
    "normal_numbers",
    "dropout",
    "fused_adam",
    "sorted_rows",
    "top_k",
    "top_k_pass",
    "max_pool_gradient",
    "average_pool_gradient",
    "scan",
    "state_space",
    "pool",
    "cudnn_9_1",
    "dilated",
    "fastest",
    "fused",
    "packed_tiles",
    "packed_16_rows",
    "packed_rows",
    "packed_outputs",
    "one_shot",
    "two_shot",
]

#: Names of the copies that cross the host link, and of all that the copy engine or the driver does.
HOST_COPIES = frozenset({"memcpy_h2d", "memcpy_d2h"})
#: Name of a copy from the memory of another GPU of the host.
PEER_COPY = "memcpy_p2p"
COPY_ENGINE_KERNELS = HOST_COPIES | {"memcpy_d2d", "memset", PEER_COPY}

#: Name of the product of one time step inside a recurrent network.
RECURRENT = "recurrent_gemm"

#: Name of FP8 products with one scale for each operand (cuBLASLt). Those with a scale a row are
#: CUTLASS's, as in serving.
TENSOR_SCALED = "scaled_gemm"

#: Name of one with a scale for each row and column by cuBLASLt (torch._scaled_mm).
OUTER_SCALED = "scaled_gemm_outer"

#: Name of a loss over classes that one CTA adds up, a score a thread and round (`width` rounds).
SERIAL_SUM = "nll_loss_sum"

#: Bytes of one element, by torch's short dtype name ("bool" as torch stores it).
DTYPE_BYTES: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
}


class KernelClass(str, Enum):
    """The families a predictor prices differently. CUSTOM is a kernel of the program's own, of
    which no more than its tensors is known, UNKNOWN what an op launches without a description."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    NORMALIZATION = "normalization"
    GATHER = "gather"
    COPY = "copy"
    SORT = "sort"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "collective"
    CUSTOM = "custom"
    UNKNOWN = "unknown"


class GemmSize(NamedTuple):
    """`batch` products of an m x k by a k x n matrix."""

    batch: int
    m: int
    n: int
    k: int


#: Most channels of an image in colour: red, green, blue and how opaque it is.
_PATCH_CHANNELS = 4


class ConvolutionSize(NamedTuple):
    """One convolution; spatial tuples have one entry a dimension (1, 2 or 3).

    `output` is the spatial size of the forward output, also for the gradients.
    """

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    direction: Pass

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group."""
        return self.groups == self.in_channels > 1

    @property
    def is_of_patches(self) -> bool:
        """Whether it cuts an image of few channels into patches that do not overlap, forward."""
        is_of_few = self.groups == 1 and self.in_channels <= _PATCH_CHANNELS
        is_cut = self.kernel == self.stride and any(taps > 1 for taps in self.kernel)
        return self.direction == "forward" and is_of_few and is_cut


class AttentionSize(NamedTuple):
    """One fused attention over `heads` query heads and `kv_heads` key/value heads."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    backward: bool


class RowsSize(NamedTuple):
    """`rows` independent rows of `width` elements (elementwise kernels: one row)."""

    rows: int
    width: int


class CollectiveSize(NamedTuple):
    """A collective of `world_size` GPUs on `num_nodes` hosts; `num_bytes`: a rank's full buffer.

    `ranks` says which, as a text ("0..7", "0..24/8", "3,5"; "" where only their number is known),
    and `gpus_per_node` how many ranks of the program each host holds (0 where it is not stated).
    """

    num_bytes: int
    world_size: int
    num_nodes: int
    ranks: str = ""
    gpus_per_node: int = 0


Size = GemmSize | ConvolutionSize | AttentionSize | RowsSize | CollectiveSize


class KernelTraits(TypedDict, total=False):
    """Those fields of a `Kernel` that most kernels leave as they are."""

    variant: Variant
    is_backward: bool
    scatters: bool
    selects: bool
    along_columns: bool
    bytes_read_again: int
    bytes_in_place: int
    num_instructions: int
    num_steps: int
    num_parts: int
    widest_part: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that a GPU runs; equal kernels have equal forecasts.

    `name` says what it computes ("gemm", "relu", "layer_norm_backward", "all_reduce", ...);
    `dtype` is the type of its main input, `out_dtype` of its output, `compute` the unit and
    precision of the arithmetic ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8").
    `num_bytes` read and written are the compulsory ones: every operand once.

    An attention of `layout` "contiguous" is torch's own, on sequences of one length. Those after it
    say what the price depends on and the rest does not state: `variant` which of its class it is;
    `is_backward` that a norm, a softmax or an attention computes gradients;
    `scatters` that it writes where others write too; `selects` that it looks for the k-th of each
    row; `along_columns` that a norm's rows are columns of the data, shared among CTAs, or that what
    is read as rows is written as columns;
    `bytes_read_again` what its loops over a row read again, unless it still lies in the L2;
    `bytes_in_place` how many it writes where it read others;
    `num_instructions` what its threads execute, where it was counted (else 0); `num_steps` how many
    kernels, each of which needs the one before, a library runs for what is described as one;
    `num_parts` how many tensors a cat joins, and `widest_part` the elements of the largest.

    Where a library has streams of its own beside the program's, `branches` says on which the kernel
    runs, and behind what the others named hold by then. They are numbered from 1 in each operator,
    which begin behind its stream, and it goes on behind them all. No price depends on them.
    """

    kernel_class: KernelClass
    name: str
    size: Size
    dtype: str
    out_dtype: str
    compute: str
    flops: int
    bytes_read: int
    bytes_written: int
    layout: Layout = ""
    variant: Variant = ""
    is_backward: bool = False
    scatters: bool = False
    selects: bool = False
    along_columns: bool = False
    bytes_read_again: int = 0
    bytes_in_place: int = 0
    num_instructions: int = 0
    num_steps: int = 0
    num_parts: int = 0
    widest_part: int = 0
    branches: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Compulsory traffic in bytes, read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def key(self) -> str:
        """A stable, readable text that identifies the kernel, for sorting and files."""
        is_placed = not isinstance(self.size, CollectiveSize) or bool(self.size.ranks)
        size = "x".join(str(part) for part in (self.size if is_placed else self.size[:3]))
        types = f"{self.dtype}>{self.out_dtype}/{self.compute}"
        moved = f"{self.bytes_read}+{self.bytes_written}"
        return f"{self.kernel_class.value}:{self.name}[{size}]{types}:{self.layout}:{moved}"

    @classmethod
    def gemm(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str = "bfloat16",
        out_dtype: str | None = None,
        compute: str | None = None,
        layout: Layout = "nt",
        bias: bool = False,
        name: str = "gemm",
        weight_bytes: int | None = None,
        variant: Variant = "",
    ) -> Kernel:
        """A matrix product, C[m, n] = A[m, k] B[k, n], `batch` times.

        `weight_bytes` are those of a packed B with its scales; without them B has A's dtype. A
        smaller B is unpacked inside the kernel, as Marlin does unless `variant` says otherwise.

        `layout` "nt" means B is stored as [n, k] (a Linear's weight), "nn" both row-major,
        "tn" A stored as [k, m]. 2·batch·m·n·k FLOPs.

        >>> Kernel.gemm(128, 256, 64, dtype="bfloat16").flops
        4194304
        """
        _require_sizes("gemm", m=m, n=n, k=k, batch=batch)
        out = out_dtype or dtype
        item, out_item = _itemsize(dtype), _itemsize(out)
        plain_bytes = batch * n * k * item
        weight = plain_bytes if weight_bytes is None else weight_bytes
        if weight < plain_bytes and not variant:
            variant = "packed_tiles"
        return cls(
            kernel_class=KernelClass.GEMM,
            name=name,
            size=GemmSize(batch, m, n, k),
            dtype=dtype,
            out_dtype=out,
            compute=compute or compute_of(dtype),
            flops=2 * batch * m * n * k,
            bytes_read=int(batch * m * k * item + weight + (n * out_item if bias else 0)),
            bytes_written=int(batch * m * n * out_item),
            layout=layout,
            variant=variant,
        )

    @classmethod
    def attention(
        cls,
        batch: int,
        heads: int,
        kv_heads: int,
        seq_q: int,
        seq_kv: int,
        head_dim: int,
        *,
        causal: bool,
        dtype: str,
        backward: bool = False,
        head_dim_v: int | None = None,
        name: Variant = "flash_attention",
        bias_bytes: int = 0,
    ) -> Kernel:
        """Fused attention: softmax(Q Kᵀ) V, forward or backward, by the library of that name.

        FLOPs: 2 matrix products forward, 5 backward (FlashAttention-2, arXiv 2307.08691,
        section 3.1.2), over the visible (causal: lower right) part of the score matrix.

        >>> Kernel.attention(1, 1, 1, 128, 128, 64, causal=False, dtype="bfloat16").flops
        4194304
        """
        _require_sizes("attention", batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        _require_sizes("attention", seq_q=seq_q, seq_kv=seq_kv)
        dim_v = head_dim if head_dim_v is None else head_dim_v
        item = _itemsize(dtype)
        scores = batch * heads * _visible_scores(seq_q, seq_kv, causal)
        q = int(batch * heads * seq_q * head_dim * item)
        k = int(batch * kv_heads * seq_kv * head_dim * item)
        v = int(batch * kv_heads * seq_kv * dim_v * item)
        out = int(batch * heads * seq_q * dim_v * item)
        statistics = batch * heads * seq_q * 4  # float32
        forward_flops = 2 * scores * (head_dim + dim_v)
        backward_flops = 2 * scores * (3 * head_dim + 2 * dim_v)
        return cls(
            kernel_class=KernelClass.ATTENTION,
            name=name + ("_backward" if backward else ""),
            size=AttentionSize(
                batch, heads, kv_heads, seq_q, seq_kv, head_dim, dim_v, causal, backward
            ),
            dtype=dtype,
            out_dtype=dtype,
            compute=compute_of(dtype),
            flops=backward_flops if backward else forward_flops,
            bytes_read=q + k + v + bias_bytes + ((2 * out + 2 * statistics) if backward else 0),
            bytes_written=(q + k + v) if backward else (out + statistics),
            variant=name,
            is_backward=backward,
        )

    @classmethod
    def convolution(
        cls,
        size: ConvolutionSize,
        *,
        dtype: str,
        compute: str | None = None,
        layout: Layout = "contiguous",
        bias: bool = False,
        variant: Variant = "",
    ) -> Kernel:
        """A convolution or one of its gradients, all with the same FLOPs (implicit GEMM)."""
        _require_convolution(size)
        item = _itemsize(dtype)
        spatial_in, spatial_out = prod(size.input), prod(size.output)
        taps = prod(size.kernel)
        image = int(size.batch * size.in_channels * spatial_in * item)
        result = int(size.batch * size.out_channels * spatial_out * item)
        weight = int(size.out_channels * (size.in_channels // size.groups) * taps * item)
        read, written = {
            "forward": (image + weight + (int(size.out_channels * item) if bias else 0), result),
            "data_gradient": (result + weight, image),
            "weight_gradient": (result + image, weight),
        }[size.direction]
        return cls(
            kernel_class=KernelClass.CONVOLUTION,
            name=f"convolution_{size.direction}",
            size=size,
            dtype=dtype,
            out_dtype=dtype,
            compute=compute or compute_of(dtype),
            flops=2
            * size.batch
            * size.out_channels
            * (size.in_channels // size.groups)
            * spatial_out
            * taps,
            bytes_read=read,
            bytes_written=written,
            layout=layout,
            variant=variant,
        )

    @classmethod
    def rows(
        cls,
        kernel_class: KernelClass,
        name: str,
        rows: int,
        width: int,
        *,
        dtype: str,
        bytes_read: int,
        bytes_written: int,
        flops: int | None = None,
        out_dtype: str | None = None,
        layout: Layout = "contiguous",
        **traits: Unpack[KernelTraits],
    ) -> Kernel:
        """A kernel bound by memory, of any class but products, attention and collectives."""
        _require_sizes(
            name, rows=rows, width=width, bytes_read=bytes_read, bytes_written=bytes_written
        )
        return cls(
            kernel_class=kernel_class,
            name=name,
            size=RowsSize(rows, width),
            dtype=dtype,
            out_dtype=out_dtype or dtype,
            compute="fp64" if dtype in ("float64", "complex128") else "fp32",
            flops=rows * width if flops is None else flops,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            layout=layout,
            **traits,
        )

    @classmethod
    def elementwise(
        cls,
        name: str,
        num_elements: int,
        *,
        dtype: str,
        num_inputs: int = 1,
        out_dtype: str | None = None,
    ) -> Kernel:
        """A pointwise kernel over `num_elements`, reading `num_inputs` tensors and writing one."""
        return cls.rows(
            KernelClass.ELEMENTWISE,
            name,
            1,
            num_elements,
            dtype=dtype,
            out_dtype=out_dtype,
            bytes_read=int(num_inputs * num_elements * _itemsize(dtype)),
            bytes_written=int(num_elements * _itemsize(out_dtype or dtype)),
        )

    @classmethod
    def collective(
        cls,
        op: str,
        num_bytes: int,
        world_size: int,
        *,
        dtype: str = "bfloat16",
        num_nodes: int = 1,
        ranks: str = "",
        gpus_per_node: int = 0,
        variant: Variant = "",
    ) -> Kernel:
        """A collective: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast" or
        "send_recv".

        `ranks` are those of the group among all of the program ("0..24/8" for every eighth of 32),
        of which a host holds `gpus_per_node`; without them `num_nodes` hosts share the ranks.

        >>> Kernel.collective("all_reduce", 2**20, 4, num_nodes=4, ranks="0..24/8").size.ranks
        '0..24/8'
        """
        _require_sizes(op, num_bytes=num_bytes, world_size=world_size)
        return cls(
            kernel_class=KernelClass.COLLECTIVE,
            name=op,
            size=CollectiveSize(num_bytes, world_size, num_nodes, ranks, gpus_per_node),
            dtype=dtype,
            out_dtype=dtype,
            compute="fp32",
            flops=0,
            bytes_read=num_bytes,
            bytes_written=num_bytes,
            variant=variant,
        )


AnySize = TypeVar("AnySize", GemmSize, ConvolutionSize, AttentionSize, RowsSize, CollectiveSize)


def size_of(kernel: Kernel, kind: type[AnySize]) -> AnySize:
    """The size of a kernel whose class has sizes of that kind."""
    assert isinstance(kernel.size, kind)
    return kernel.size


_COMPUTE = {
    "float64": "fp64",
    "complex128": "fp64",
    "float32": "fp32",
    "complex64": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "complex32": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "int8": "int8",
    "uint8": "int8",
}


def compute_of(dtype: str) -> str:
    """The arithmetic a matrix unit does on this dtype by default (TF32 only where asked for)."""
    return _COMPUTE.get(dtype, "fp32")


def _itemsize(dtype: str) -> float:
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(
            f"Unknown dtype {dtype!r}: use torch's short name, one of {', '.join(DTYPE_BYTES)}."
        ) from None


def _require_sizes(name: str, **sizes: int) -> None:
    for label, value in sizes.items():
        if value != int(value):
            raise ValueError(f"{name}: {label} is {value}; a size is a whole number.")
        if value < 0:
            raise ValueError(f"{name}: {label} is {value}; a size cannot be negative.")


def _require_convolution(size: ConvolutionSize) -> None:
    """ValueError where torch would refuse it: sizes below 0, groups that divide no channels."""
    edges = {f"{name} edge": min(edge) for name, edge in
             (("input", size.input), ("output", size.output), ("kernel", size.kernel))}  # fmt: skip
    channels = {"in_channels": size.in_channels, "out_channels": size.out_channels}
    _require_sizes("convolution", batch=size.batch, groups=size.groups, **channels, **edges)
    for label, value in channels.items():
        if size.groups < 1 or value % size.groups:
            raise ValueError(
                f"convolution: {label} is {value}, which {size.groups} groups do not divide."
            )


def _visible_scores(seq_q: int, seq_kv: int, causal: bool) -> int:
    """Entries of the score matrix that are computed; causal aligned to the lower right corner."""
    if not causal or seq_q <= 1:
        return seq_q * seq_kv
    if seq_kv >= seq_q:
        return seq_q * (seq_kv - seq_q) + seq_q * (seq_q + 1) // 2
    return seq_kv * (seq_kv + 1) // 2

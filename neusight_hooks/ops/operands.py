"""What an op reads and writes, and the kernels of that: the words formulas are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, Layout, Variant
from neusight.recording.recording import Argument, OpSignature, TensorSpec

__all__ = [
    "ceil_div",
    "contiguous",
    "copy_kernel",
    "flags",
    "gpu_tensors",
    "is_dense",
    "is_dense_channels_last",
    "is_in_place",
    "itemsize",
    "kernel_name",
    "layout_of",
    "memcpy_d2h",
    "memcpy_h2d",
    "memory_kernel",
    "new_tensor",
    "num_bytes",
    "op_names",
    "output",
    "per_dim",
    "pointwise_kernel",
    "product",
    "read_tensors",
    "same_storage_order",
    "sum_kernel",
    "vector",
    "wrap_dim",
    "written_tensors",
]


def op_names(text: str) -> tuple[str, ...]:
    """The names in a text, sorted."""
    return tuple(sorted(text.split()))


#: Overloads with `out=` parameters whose name does not end in "out" (from the schemas of 2.13).
_OUT_OVERLOADS = frozenset(
    op_names(
        """
    L OutScalar_Other OutScalar_Self OutTensor Q U X a dim_max dim_min dim_values eigenvalues
    eigvals grad_input inverse result sign values values_stable
    """
    )
)


def ceil_div(count: int, size: int) -> int:
    """How many pieces of `size` hold `count`."""
    return -(-count // size)


def product(values: Iterable[int]) -> int:
    """All values multiplied."""
    result = 1
    for value in values:
        result *= value
    return result


def itemsize(dtype: str) -> int:
    """Whole bytes of one element."""
    return int(DTYPE_BYTES.get(dtype, 4))


def gpu_tensors(specs: Iterable[Argument]) -> tuple[TensorSpec, ...]:
    """Those that are tensors on the GPU (a CPU scalar tensor is passed by value)."""
    return tuple(s for s in specs if isinstance(s, TensorSpec) and s.device != "cpu")


def num_bytes(specs: Iterable[TensorSpec | None]) -> int:
    """Bytes of all of them on the GPU."""
    return sum(spec.num_bytes for spec in specs if spec is not None and spec.device != "cpu")


def read_tensors(call: OpSignature) -> tuple[TensorSpec, ...]:
    """The GPU tensors that the op reads: its inputs without the `out=` ones."""
    inputs = call.input_tensors
    if call.overload.endswith("out") or call.overload in _OUT_OVERLOADS:
        inputs = inputs[: max(0, len(inputs) - len(call.output_tensors))]
    return gpu_tensors(inputs)


def written_tensors(call: OpSignature) -> tuple[TensorSpec, ...]:
    """The GPU tensors that the op writes: its outputs, or what it changes where it returns none."""
    outputs = gpu_tensors(call.output_tensors)
    if outputs or not is_in_place(call):
        return outputs
    return gpu_tensors(call.input_tensors[:1])


def is_in_place(call: OpSignature) -> bool:
    """Whether the op is the in-place form, such as add_."""
    return call.op.endswith("_") and not call.op.endswith("__")


def kernel_name(call: OpSignature) -> str:
    """The op's name without namespace and underscores around it."""
    return call.op.partition("::")[2].strip("_") or call.op


def output(call: OpSignature, index: int = 0) -> TensorSpec:
    """The output tensor of that number."""
    written = written_tensors(call)
    if index >= len(written):
        raise ValueError(f"{call.op} has {len(written)} output tensors, not {index + 1}")
    return written[index]


def flags(given: tuple[bool, ...], count: int) -> tuple[bool, ...]:
    """A list of `count` flags; absent ones are set."""
    return (given + (True,) * count)[:count]


def per_dim(values: Sequence[int], rank: int, default: int = 1) -> tuple[int, ...]:
    """One value a dimension, as torch expands a single one."""
    if not values:
        return (default,) * rank
    return tuple(values) if len(values) == rank else (values[0],) * rank


def wrap_dim(dim: int, rank: int) -> int:
    """The dimension counted from the front (0 for a scalar tensor)."""
    return dim % rank if rank else 0


def new_tensor(shape: Iterable[int], dtype: str, device: str) -> TensorSpec:
    """A tensor of that shape, stored without gaps in the order of its dimensions."""
    sizes = tuple(shape)
    return TensorSpec(sizes, _strides(sizes), dtype, device)


def vector(size: int, dtype: str, device: str = "cuda") -> TensorSpec:
    """A contiguous vector."""
    return TensorSpec((size,), (1,), dtype, device)


def contiguous(spec: TensorSpec) -> TensorSpec:
    """The same tensor, stored without gaps in the order of its dimensions."""
    return spec._replace(stride=_strides(spec.shape))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def is_dense(spec: TensorSpec) -> bool:
    """Without gaps or overlap, in whatever order of dimensions."""
    expected = 1
    pairs = sorted(zip(spec.stride, spec.shape, strict=True))
    for stride, size in pairs:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def is_dense_channels_last(spec: TensorSpec) -> bool:
    """In NHWC (or NDHWC) order, also where the order is both (as for a 1x1 weight)."""
    rank = len(spec.shape)
    if rank not in (4, 5):
        return False
    expected = 1
    for dim in (1, *range(rank - 1, 1, -1), 0):
        if spec.shape[dim] != 1 and spec.stride[dim] != expected:
            return False
        expected *= spec.shape[dim]
    return True


def same_storage_order(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether the elements lie in the same order, so that a flat copy does."""
    return first.shape == second.shape and all(
        size == 1 or left == right
        for size, left, right in zip(first.shape, first.stride, second.stride, strict=True)
    )


def layout_of(specs: Iterable[TensorSpec]) -> Layout:
    """ "contiguous" if one flat loop goes through all of them, "strided" if indices are needed."""
    tensors = [spec for spec in specs if spec.numel > 1]
    if not tensors:
        return "contiguous"
    first = tensors[0]
    if is_dense(first) and all(same_storage_order(first, other) for other in tensors[1:]):
        return "contiguous"
    return "strided"


def memory_kernel(
    kernel_class: KernelClass,
    name: str,
    *,
    reads: Iterable[TensorSpec | None] = (),
    writes: Iterable[TensorSpec | None] = (),
    rows: int = 1,
    width: int | None = None,
    flops: int | None = None,
    dtype: str | None = None,
    layout: Layout | None = None,
    bytes_read: int | None = None,
    bytes_written: int | None = None,
    variant: Variant = "",
    is_backward: bool = False,
    scatters: bool = False,
    selects: bool = False,
    along_columns: bool = False,
) -> Kernel:
    """A kernel bound by memory that reads and writes these tensors, each once.

    `width` defaults to the largest tensor's elements; `dtype` to the type of the tensor read with
    most bytes, else of the first one written. `bytes_read` and `bytes_written` override the sums.
    """
    sources = gpu_tensors(reads)
    targets = gpu_tensors(writes)
    largest = max(sources, key=lambda spec: spec.num_bytes, default=None)
    main = largest or (targets[0] if targets else TensorSpec((), (), "float32"))
    if width is None:
        elements = max((spec.numel for spec in sources + targets), default=0)
        width = ceil_div(elements, rows) if rows else 0
    return Kernel.rows(
        kernel_class,
        name,
        rows,
        width,
        dtype=dtype or main.dtype,
        out_dtype=targets[0].dtype if targets else None,
        bytes_read=num_bytes(sources) if bytes_read is None else bytes_read,
        bytes_written=num_bytes(targets) if bytes_written is None else bytes_written,
        flops=flops,
        layout=layout or layout_of(sources + targets),
        variant=variant,
        is_backward=is_backward,
        scatters=scatters,
        selects=selects,
        along_columns=along_columns,
    )


def pointwise_kernel(
    name: str,
    reads: Iterable[TensorSpec | None],
    writes: Iterable[TensorSpec | None],
    *,
    scatters: bool = False,
) -> list[Kernel]:
    """One elementwise kernel over the largest tensor written; none for an empty one."""
    targets = gpu_tensors(writes)
    elements = max((spec.numel for spec in targets), default=0)
    if elements == 0:
        return []
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE,
            name,
            reads=reads,
            writes=targets,
            width=elements,
            scatters=scatters,
        )
    ]


def sum_kernel(source: TensorSpec, result: TensorSpec) -> Kernel:
    """One kernel that sums `source` to the elements of `result`."""
    rows = max(1, result.numel)
    return memory_kernel(KernelClass.REDUCTION, "sum", reads=(source,), writes=(result,), rows=rows)


def copy_kernel(source: TensorSpec, target: TensorSpec, name: str = "copy") -> list[Kernel]:
    """A copy on the GPU: a plain memcpy where the bytes agree, else an elementwise kernel.

    at::native::copy_device_to_device (Copy.cu): memcpy for equal dtypes and one flat loop.
    """
    if target.numel == 0:
        return []
    flat = source.dtype == target.dtype and layout_of((source, target)) == "contiguous"
    label = "memcpy_d2d" if flat and source.numel == target.numel and name == "copy" else name
    return [
        memory_kernel(
            KernelClass.COPY,
            label,
            reads=(source,),
            writes=(target,),
            width=target.numel,
            flops=0,
        )
    ]


def memcpy_h2d(target: TensorSpec) -> Kernel:
    """A copy from the host into a tensor."""
    return _memcpy("memcpy_h2d", target)


def memcpy_d2h(source: TensorSpec) -> Kernel:
    """A copy of a tensor to the host. Inside an op it also means that the host waits."""
    return _memcpy("memcpy_d2h", source)


def _memcpy(name: str, spec: TensorSpec) -> Kernel:
    moved = spec.numel * itemsize(spec.dtype)
    return Kernel.rows(
        KernelClass.COPY,
        name,
        1,
        spec.numel,
        dtype=spec.dtype,
        bytes_read=moved,
        bytes_written=moved,
        flops=0,
    )

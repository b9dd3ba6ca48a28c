"""What an op reads and writes, and the kernels of that: the words formulas are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from neusight.predictors.kernel import (
    DTYPE_BYTES,
    PEER_COPY,
    Kernel,
    KernelClass,
    KernelTraits,
    Layout,
)
from neusight.recording.recording import (
    Argument,
    OpSignature,
    TensorSpec,
    contiguous_strides,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


def per_dim(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One value a dimension, as torch expands a single one."""
    if not values:
        return (1,) * rank
    return tuple(values) if len(values) == rank else (values[0],) * rank


def wrap_dim(dim: int, rank: int) -> int:
    """The dimension counted from the front (0 for a scalar tensor)."""
    return dim % rank if rank else 0


def new_tensor(shape: Iterable[int], dtype: str, device: str) -> TensorSpec:
    """A tensor of that shape, stored without gaps in the order of its dimensions."""
    sizes = tuple(shape)
    return TensorSpec(sizes, contiguous_strides(sizes), dtype, device)


def vector(size: int, dtype: str, device: str = "cuda") -> TensorSpec:
    """A contiguous vector."""
    return TensorSpec((size,), (1,), dtype, device)


def contiguous(spec: TensorSpec) -> TensorSpec:
    """The same tensor, stored without gaps in the order of its dimensions."""
    return spec._replace(stride=contiguous_strides(spec.shape))


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


def same_storage_order(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether the elements lie in the same order, so that a flat copy does."""
    return _steps(first) == _steps(second)


def _steps(spec: TensorSpec) -> list[tuple[int, int]]:
    """Size and stride of each dimension that has more than one element, in order."""
    pairs = zip(spec.shape, spec.stride, strict=True)
    return [(size, stride) for size, stride in pairs if size != 1]


def layout_of(specs: Iterable[TensorSpec]) -> Layout:
    """How a loop in the order of the largest tensor, the last of these, goes through all of them:
    "contiguous" if flat, "strided" if it transposes one of them, else "scalar"."""
    tensors = [spec for spec in specs if spec.numel]
    largest = max((spec.numel for spec in tensors), default=0)
    if largest <= 1:
        return "contiguous"
    leading = [spec for spec in tensors if spec.numel == largest][-1]
    if is_dense(leading) and all(same_storage_order(leading, other) for other in tensors):
        return "contiguous"
    return "strided" if any(_is_transposed(spec, leading) for spec in tensors) else "scalar"


#: Elements that a CTA of an elementwise kernel takes (4 for each of 128 threads, CUDALoops.cuh),
#: and bytes of a sector, the least that is read.
_CTA_ELEMENTS = 512
_SECTOR_BYTES = 32

#: Sectors for each element from which on a CTA's reading counts as transposed: contiguous it is
#: 1/8 (four bytes) or less.
_TRANSPOSED_SECTORS = 0.25


def _is_transposed(spec: TensorSpec, leading: TensorSpec) -> bool:
    """Whether elements next to each other in `leading` lie apart here, so that each costs a
    sector."""
    gap = len(leading.shape) - len(spec.shape)
    if gap < 0:
        return False
    item = itemsize(spec.dtype)
    covered, steps = 1, []
    for stride, dim in sorted((stride, dim) for dim, stride in enumerate(leading.stride)):
        size = leading.shape[dim]
        if covered >= _CTA_ELEMENTS or size <= 1 or stride == 0:
            continue
        taken = min(size, ceil_div(_CTA_ELEMENTS, covered))
        covered *= taken
        if dim >= gap and spec.shape[dim - gap] > 1 and spec.stride[dim - gap]:
            steps.append((spec.stride[dim - gap] * item, taken))
    pieces, extent = 1, item
    for num_bytes, taken in sorted(steps):
        if num_bytes <= max(extent, _SECTOR_BYTES):
            extent += (taken - 1) * num_bytes
        else:
            pieces *= taken
    sectors = pieces * ceil_div(extent, _SECTOR_BYTES)
    return covered > _SECTOR_BYTES and sectors > _TRANSPOSED_SECTORS * covered


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
    **traits: Unpack[KernelTraits],
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
        layout=layout or _layout_of(kernel_class, sources + targets),
        **traits,
    )


def _layout_of(kernel_class: KernelClass, tensors: tuple[TensorSpec, ...]) -> Layout:
    """Of a pass over all elements by all its tensors, of others by the largest ones."""
    if kernel_class in (KernelClass.ELEMENTWISE, KernelClass.COPY):
        return layout_of(tensors)
    largest = max((spec.numel for spec in tensors), default=0)
    return layout_of(spec for spec in tensors if spec.numel == largest)


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
    sources = gpu_tensors(reads)
    layout = layout_of(sources + targets)
    if layout == "contiguous" and _casts(sources, targets):
        layout = "scalar"
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE,
            name,
            reads=sources,
            writes=targets,
            width=elements,
            layout=layout,
            scatters=scatters,
            variant="mixed_types" if _mixes(sources) else "",
        )
    ]


def fill_kernel(target: TensorSpec) -> list[Kernel]:
    """One kernel that writes one value everywhere; none for an empty tensor."""
    return pointwise_kernel("fill", (), (target,))


#: Types between which a loop casts element by element where it meets several (LoadWithCast and
#: StoreWithCast, MemoryAccess.cuh).
_FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})


def _casts(sources: tuple[TensorSpec, ...], targets: tuple[TensorSpec, ...]) -> bool:
    """Whether floats of several types meet in one pointwise kernel."""
    return len({spec.dtype for spec in (*sources, *targets[:1])} & _FLOATS) > 1


def _mixes(sources: tuple[TensorSpec, ...]) -> bool:
    """Whether it reads tensors of several floating types, each of which it casts by itself."""
    return len({spec.dtype for spec in sources if spec.numel > 1} & _FLOATS) > 1


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
    layout = layout_of((source, target))
    flat = source.dtype == target.dtype and layout == "contiguous"
    if layout == "contiguous" and not flat and not _is_rounded(source, target):
        layout = "scalar"
    label = "memcpy_d2d" if flat and source.numel == target.numel and name == "copy" else name
    return [
        memory_kernel(
            KernelClass.COPY,
            label,
            reads=(source,),
            writes=(target,),
            width=target.numel,
            flops=0,
            layout=layout,
        )
    ]


def _is_rounded(source: TensorSpec, target: TensorSpec) -> bool:
    """Whether the copy rounds float32 to 16 bits, which alone of all casts has a kernel of its own
    that takes several elements at once (float16_copy_kernel_cuda, Copy.cu)."""
    return source.dtype == "float32" and target.dtype in ("bfloat16", "float16")


def memcpy_h2d(target: TensorSpec) -> Kernel:
    """A copy from the host into a tensor."""
    return _memcpy("memcpy_h2d", target)


def memcpy_d2h(source: TensorSpec) -> Kernel:
    """A copy of a tensor to the host. Inside an op it also means that the host waits."""
    return _memcpy("memcpy_d2h", source)


def memcpy_p2p(target: TensorSpec) -> Kernel:
    """A copy from the memory of another GPU into a tensor."""
    return _memcpy(PEER_COPY, target)


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

"""A kernel as a row of plain values, for files of measurements."""

from __future__ import annotations

from typing import Any, cast, get_args, get_type_hints

from neusight.predictors.errors import DataError
from neusight.predictors.files import is_count, is_number, shown
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
    KernelClass,
    Layout,
    RowsSize,
    Size,
    Variant,
)

_SIZES: dict[KernelClass, type[Any]] = {
    KernelClass.GEMM: GemmSize,
    KernelClass.ATTENTION: AttentionSize,
    KernelClass.CONVOLUTION: ConvolutionSize,
    KernelClass.COLLECTIVE: CollectiveSize,
}

#: Fields that stand in every row, in this order; a mapping of the traits that are set follows.
_ALWAYS = 10
_TRAITS = ("variant", "is_backward", "scatters", "selects", "along_columns")

#: Largest size, FLOPs or bytes of a kernel: a GPU does not live to see its end.
_MOST_WORK = 1e60
_MOST_SIZE = 2**48


def row_of_kernel(kernel: Kernel) -> list[Any]:
    """A kernel as a short list of plain values; `kernel_from_row` reads it back."""
    return [
        kernel.kernel_class.value,
        kernel.name,
        list(kernel.size)[: _num_parts(type(kernel.size))],
        kernel.dtype,
        kernel.out_dtype,
        kernel.compute,
        kernel.flops,
        kernel.bytes_read,
        kernel.bytes_written,
        kernel.layout,
        {name: getattr(kernel, name) for name in _TRAITS if getattr(kernel, name)},
    ]


def kernel_from_row(row: Any) -> Kernel:
    """The kernel that `row_of_kernel` wrote; DataError where it is none.

    A row without traits is of a file from before kernels had any.
    """
    if not isinstance(row, list) or len(row) not in (_ALWAYS, _ALWAYS + 1):
        raise DataError(f"{shown(row)} describes no kernel.")
    kernel_class, name, size, dtype, out_dtype, compute, flops, read, written, layout = row[
        :_ALWAYS
    ]
    if not all(isinstance(text, str) for text in (name, dtype, out_dtype, compute, layout)):
        raise DataError(f"{shown(row)} describes no kernel: it has no name, type or layout.")
    if dtype not in DTYPE_BYTES:
        raise DataError(f"{shown(row)} describes no kernel: its type {shown(dtype)} is unknown.")
    if not all(is_number(work) and 0 <= work <= _MOST_WORK for work in (flops, read, written)):
        raise DataError(f"{shown(row)} describes no kernel: its work is no number.")
    chosen = _class_of(kernel_class, row)
    traits = _traits_from(row[_ALWAYS]) if len(row) > _ALWAYS else _traits_of(name, chosen)
    return Kernel(
        kernel_class=chosen,
        name=name,
        size=_size_from(_SIZES.get(chosen, RowsSize), size),
        dtype=dtype,
        out_dtype=out_dtype,
        compute=compute,
        flops=flops,
        bytes_read=read,
        bytes_written=written,
        layout=cast("Layout", layout),
        **traits,
    )


def _class_of(value: Any, row: list[Any]) -> KernelClass:
    try:
        return KernelClass(value)
    except ValueError as error:
        raise DataError(f"{shown(row)} describes no kernel ({error}).") from error


def _traits_from(data: Any) -> dict[str, Any]:
    """The traits that were set; DataError for others, or values they cannot have."""
    if not isinstance(data, dict) or not all(
        value in get_args(Variant) if name == "variant" else name in _TRAITS and value is True
        for name, value in data.items()
    ):
        raise DataError(f"{shown(data)} are no traits of a kernel.")
    return dict(data)


#: Words by which the names of earlier files state traits.
_SCATTERING = ("scatter", "index_put", "index_add", "embedding_dense_backward", "bincount", "histc")
_SELECTING = ("topk", "kthvalue", "median", "nanmedian")
_WITH_VARIANTS = frozenset({KernelClass.ATTENTION, KernelClass.NORMALIZATION, KernelClass.SOFTMAX})


def _traits_of(name: str, kernel_class: KernelClass) -> dict[str, Any]:
    """The traits of a kernel in a file of before they were written: its name says them all."""
    plain, backward, rest = name.partition("_backward")
    if kernel_class in _WITH_VARIANTS:
        is_sum = plain == "batch_norm_statistics" or (plain == "batch_norm" and rest == "_sums")
        variant = "batch_norm_sums" if is_sum else plain
        return {
            "variant": variant if variant in get_args(Variant) else "",
            "is_backward": bool(backward),
            "along_columns": rest == "_weight",
        }
    if kernel_class is KernelClass.COLLECTIVE:
        return {}
    return {
        "scatters": any(word in name for word in _SCATTERING),
        "selects": kernel_class is KernelClass.SORT and name.startswith(_SELECTING),
    }


def _size_from(kind: type[Any], size: Any) -> Size:
    """The problem size, every part of it of the type that it is declared to have."""
    hints = get_type_hints(kind)
    types = {name: hints[name] for name in list(hints)[: _num_parts(kind)]}
    if not isinstance(size, list) or len(size) != len(types):
        raise DataError(f"{shown(size)} is no size of a kernel: it must be {', '.join(types)}.")
    parts = [tuple(part) if isinstance(part, list) else part for part in size]
    for part, (name, wanted) in zip(parts, types.items(), strict=True):
        if not _is_part(part, wanted):
            raise DataError(f"{shown(size)} is no size of a kernel: {name} is {shown(part)}.")
    made: Size = kind(*parts)
    return made


def _num_parts(kind: type[Any]) -> int:
    """How many parts of a size a row states: which ranks of which program a group has, it does
    not."""
    return len(kind._fields) - len(kind._field_defaults)


def _is_part(part: object, wanted: object) -> bool:
    if wanted is int:
        return is_count(part) and part <= _MOST_SIZE  # type: ignore[operator]  # it is a number
    if wanted is bool:
        return isinstance(part, bool)
    if wanted == tuple[int, ...]:
        return isinstance(part, tuple) and all(_is_part(item, int) for item in part)
    return part in get_args(wanted)

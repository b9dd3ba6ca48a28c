"""A kernel that Inductor fused, as its wrapper will launch it: what it computes and touches."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from neusight.fake_cuda.compiling.origins import ops_of
from neusight.fake_cuda.compiling.rules.flex_attention import attention_of, number_of

Kind = Literal["pointwise", "reduction", "persistent_reduction", "foreach", "template"]


class TouchedBuffer(NamedTuple):
    """What a kernel does to one of its arguments: `elements` of it, and how many of its loops over
    a row read it. None where all of its elements are touched."""

    name: str
    elements: int | None
    num_loops: int = 1

    @property
    def is_read(self) -> bool:
        return not self.name.startswith("out_")

    @property
    def is_written(self) -> bool:
        return self.name.startswith(("out_", "in_out_", "ws_"))


class FusedKernel(NamedTuple):
    """One Triton kernel as Inductor wrote it, for the sizes it was compiled with.

    `numels` are elements by dimension, that of a reduced row last; `buffers` its arguments that are
    tensors, in order; `num_operations` what it computes for each element, `num_instructions` what
    that costs a thread; `along_columns` that a reduced row lies apart in memory; `origins` the
    program's ops that it runs; `attention` the fields of a `FlexAttention`, where it is one.
    """

    name: str
    kind: Kind
    numels: tuple[tuple[str, int], ...] = ()
    buffers: tuple[TouchedBuffer, ...] = ()
    num_operations: int = 1
    num_instructions: int = 0
    along_columns: bool = False
    origins: tuple[str, ...] = ()
    attention: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        return math.prod(size for _, size in self.numels)


def kernel_of(fields: Mapping[str, Any]) -> FusedKernel:
    """The kernel whose fields were written as JSON.

    >>> kernel_of({"name": "triton_a", "kind": "pointwise", "buffers": [["in_ptr0", 4]]}).buffers
    (TouchedBuffer(name='in_ptr0', elements=4, num_loops=1),)
    """
    plain = {name: _tuples(value) for name, value in fields.items()}
    buffers = tuple(TouchedBuffer(*buffer) for buffer in plain["buffers"])
    return FusedKernel(**{**plain, "buffers": buffers})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def described(name: str, source: str, nodes: Sequence[Any], kernel: Any) -> FusedKernel:
    """The record of a kernel, from what Inductor's code generator knows while it writes it."""
    nodes = [node for node in nodes if hasattr(node, "get_nodes")]  # others are marks of loops
    kind = _kind(kernel)
    numels = {
        prefix: number_of(size)
        for prefix, size in getattr(kernel, "numels", {}).items()
        if kind != "pointwise" or not prefix.startswith("r")  # no argument of its launches
    }
    loops = loads_by_loop(source)
    rows = _rows_of_a_cta(kind)
    return FusedKernel(
        name=name,
        kind=kind,
        numels=tuple(numels.items()),
        buffers=tuple(_buffers(kernel, numels, loops, is_whole=kind in ("foreach", "template"))),
        num_operations=num_operations(source, rows=rows),
        num_instructions=0 if kind == "template" else num_instructions(source, rows=rows),
        along_columns=reads_along_columns(source),
        origins=ops_of(nodes),
        attention=attention_of(kernel),
    )


def _rows_of_a_cta(kind: Kind) -> int:
    """Rows of a reduction that a CTA takes at once: one by Inductor's first choice for long rows,
    more where it tunes by coordinate descent (max-autotune)."""
    from torch._inductor import config

    tunes = kind == "reduction" and config.coordinate_descent_tuning
    return _TUNED_ROWS if tunes else 1


def _kind(kernel: Any) -> Kind:
    name = type(kernel).__name__
    if "Template" in name:
        return "template"
    if "Combo" in name:
        return "foreach"
    features = getattr(kernel, "features", None)
    reduces = features is not None and features.is_reduction()
    if not getattr(kernel, "inside_reduction", False) and not reduces:
        return "pointwise"
    return "persistent_reduction" if getattr(kernel, "persistent_reduction", False) else "reduction"


def _buffers(
    kernel: Any, numels: dict[str, int], loops: Counter[str], *, is_whole: bool
) -> Iterator[TouchedBuffer]:
    """What is touched of each tensor, in the order of the call's arguments."""
    definitions, call_args, arguments, _ = kernel.args.python_argdefs()
    accesses = {} if is_whole else kernel.features.buf_accesses()
    elements = math.prod(numels.values())
    num_indices = None if is_whole else _num_indices(kernel, accesses)
    for definition, outer, argument in zip(definitions, call_args, arguments, strict=True):
        if not hasattr(argument, "dtype"):
            continue  # a size
        inner = str(definition.name)
        touched = None
        if outer in accesses:
            touched = _touched(outer, accesses[outer], elements, num_indices)
        yield TouchedBuffer(inner, touched, max(1, loops[inner]))


def _touched(
    buffer: str, accesses: Iterable[Any], elements: int, num_indices: int | None
) -> int | None:
    """Elements of the buffer that are read or written, at most: for each index expression one for
    each value of the loop variables in it and of the index that it looks up. None where it is all.
    """
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.virtualized import V

    touched_by: dict[Any, int] = {}
    for position, access in enumerate(accesses):
        if isinstance(access, MemoryDep):
            looked_up = (num_indices or elements) if access.is_indirect() else 1
            touched_by[access.index] = min(elements, looked_up * _num_places(access))
        else:
            touched_by[f"unknown {position}"] = elements
    touched = sum(touched_by.values())
    return touched if touched < number_of(V.graph.get_numel(buffer)) else None


def _num_indices(kernel: Any, accesses: Mapping[str, Iterable[Any]]) -> int | None:
    """Combinations of the integers that a kernel loads, which an indirect access may look up. None
    where it may look up one that it computes of its loop variables, as upsampling does."""
    import torch
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.virtualized import V

    bodies = (getattr(node, "_body", None) for node in kernel.features.scheduler_nodes())
    if any(body is None or body.has_op("index_expr") for body in bodies):
        return None
    index_types = (torch.int32, torch.int64)  # fewer bits are quantized weights
    loads = {
        (buffer, access.index): _num_places(access)
        for buffer, of_buffer in accesses.items()
        if V.graph.get_dtype(buffer) in index_types
        for access in of_buffer
        if isinstance(access, MemoryDep) and not access.is_indirect()
    }
    return math.prod(loads.values()) if loads else None


def _num_places(access: Any) -> int:
    """Values of the loop variables that an access goes by."""
    ranges = dict(zip(access.var_names, access.size, strict=True))
    return math.prod(number_of(ranges[name]) for name in access.index.free_symbols & ranges.keys())


#: A loop over the elements of a row, by 2.13's names for its variable.
_LOOP = re.compile(r"(\s*)for r\w*offset")
_LOAD = re.compile(r"tl\.load\((\w+)")
#: A line that computes a value; those that load or cast one compute nothing.
_VALUE = re.compile(r"\s*tmp\d+ = (?!tl\.load|tmp\d+\.to\(|tl\.full|tl\.broadcast_to)")


#: What Inductor says of a reduction: bytes that neighbours in memory are by dimension.
_COALESCED = re.compile(r"'tiling_scores': \{'x': (\d+), 'r0_': (\d+)\}")

#: Instructions of a thread for an element, by what a line of Triton calls, beside the one of any
#: value. Measured: Welford's update (data/kernelbench, even half: beside their
#: other instructions batch norms of single programs leave 60-80, layer and group norms more). The
#: rest are priors by the length of libdevice's and Triton's code.
_INSTRUCTIONS = {
    "welford_reduce": 65,
    "welford_combine": 65,
    "online_softmax_reduce": 40,
    "online_softmax_combine": 40,
    "associative_scan": 20,
    "rand": 60,
    "rand4x": 60,
    "randn": 80,
    "randn4x": 80,
    "randint64": 60,
    "pow": 30,
    "tanh": 20,
    "sin": 30,
    "cos": 30,
    "erf": 15,
    "log1p": 15,
    "expm1": 15,
    "sigmoid": 10,
    "log": 8,
    "exp": 6,
    "sqrt_rn": 8,
    "rsqrt": 6,
    "sqrt": 6,
    "div_floor_integer": 10,
    "remainder_integer": 10,
}
_DIVISION = 6
#: A division of an index by a constant, or its remainder.
_INDEX_DIVISION = 5
#: A load that happens only where a computed condition holds (padding, parts of a cat): not
#: vectorised, its address again. data/kernelbench, pooling of 8 taps: 6-17 (even half); 16 taps,
#: judged: 13-14.
_GUARDED_LOAD = 12

#: Rows of a CTA that coordinate descent is taken to find for rows of thousands of elements: with
#: blocks of 2048 elements and 16 warps, Inductor's own, 32 sums a thread. A prior.
_TUNED_ROWS = 8
#: A line that defines a value, the values that it uses, and what distinguishes rows.
_DEFINED = re.compile(r"\s*(_?tmp\d+) = ")
_NAME = re.compile(r"\b_?tmp\d+\b")
_ROW = re.compile(r"\b[xyz]\d+\b|\b[xyz](?:index|mask)\b|XBLOCK|YBLOCK")

#: Neighbours in memory that a thread loads at once: 16 bytes of fp32. What is the same for all of
#: them is computed once, and a load that all of them make, or none, is vectorised: Triton's
#: analysis of axes follows an index divided by a multiple of them, like the row of a matrix.
_VECTOR = 4
_RUN = re.compile(r"\s*([xyz]\d+) = \(*[xyz]index // (\d+)")
_VARIABLE = re.compile(r"\b(?:tmp\d+|[xyz]\d+|r\d*_?\d+)\b")

_CALL = re.compile(r"\.(\w+)\(")
_GUARD = re.compile(r"tl\.load\(.*,.*tmp\d")
_INDEX = re.compile(r"\s*[xyz]\d+ = ")


def loads_by_loop(source: str) -> Counter[str]:
    """In how many loops over a row each argument is read.

    >>> loads_by_loop("for r0_offset in x:\\n    tl.load(in_ptr0 + 1)\\nend")
    Counter({'in_ptr0': 1})
    """
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    lines = source.splitlines()
    for line, is_inside in zip(lines, _are_inside_loops(lines), strict=True):
        if is_inside:
            seen.update(_LOAD.findall(line))
        elif line.strip():  # another loop, or what is behind one
            counts.update(seen)
            seen.clear()
    counts.update(seen)
    return counts


def reads_along_columns(source: str) -> bool:
    """Whether neighbours in memory belong to different rows of a reduction.

    >>> reads_along_columns("'tiling_scores': {'x': 8192, 'r0_': 0}")
    True
    """
    stated = _COALESCED.search(source)
    return stated is not None and int(stated[1]) > int(stated[2])


def num_operations(source: str, *, rows: int = 1) -> int:
    """Values that the kernel computes for each element, at least one; `rows` of a reduction share
    those that are the same for each."""
    lines = source.splitlines()
    return max(1, _shared_among(rows, lines, [int(bool(_VALUE.match(line))) for line in lines]))


def num_instructions(source: str, *, rows: int = 1) -> int:
    """Instructions of a thread for each element: of a kernel that loops over rows those of its
    loops. `rows` of a reduction share what is the same for each.

    >>> num_instructions("tmp0 = tl.load(in_ptr0 + (x0), None)\\ntmp1 = libdevice.tanh(tmp0)")
    22
    """
    lines = source[max(0, source.rfind("@triton.jit")) :].splitlines()
    inside = _are_inside_loops(lines)
    if any(inside):
        counts = [_instructions(line) * is_in for line, is_in in zip(lines, inside, strict=True)]
        return _shared_among(rows, lines, counts)
    counts = [_instructions(line) for line in lines]
    of_runs = sum(count for count, is_so in zip(counts, _are_of_runs(lines), strict=True) if is_so)
    return sum(counts) - of_runs + -(-of_runs // _VECTOR)


def _are_of_runs(lines: Iterable[str]) -> Iterator[bool]:
    """Of each line, whether it does the same for `_VECTOR` neighbours: a value that goes by rows
    alone, or a load that such a value guards."""
    names: set[str] = set()
    for line in lines:
        run = _RUN.match(line)
        if run is not None and not int(run[2]) % _VECTOR:
            names.add(run[1])
        defined = _DEFINED.match(line)
        used = set(_VARIABLE.findall(line[defined.end() :])) if defined else set()
        is_load = "tl.load" in line
        if defined is not None and used <= names and not is_load:
            names.add(defined[1])
        guards = {name for name in used if name.startswith("tmp")}
        yield defined is not None and (
            bool(guards) and guards <= names if is_load else used <= names
        )


def _shared_among(rows: int, lines: Sequence[str], counts: Sequence[int]) -> int:
    """The sum of the lines' counts, where so many rows share those that are the same for each."""
    if rows == 1:
        return sum(counts)
    columns = list(_are_of_columns(lines))
    own = sum(count for count, is_shared in zip(counts, columns, strict=True) if not is_shared)
    shared = sum(counts) - own
    return own + -(-shared // rows)


def _are_of_columns(lines: Iterable[str]) -> Iterator[bool]:
    """Of each line, whether it gives a value that goes by the place in the row alone: Triton
    computes those as one row, of shape [1, R0_BLOCK], whatever the rows of the CTA."""
    names: set[str] = set()
    for line in lines:
        defined = _DEFINED.match(line)
        used = set(_NAME.findall(line[defined.end() :])) if defined else set()
        is_of_columns = defined is not None and not _ROW.search(line) and used <= names
        if defined is not None:
            (names.add if is_of_columns else names.discard)(defined[1])
        yield is_of_columns


def _are_inside_loops(lines: Sequence[str]) -> list[bool]:
    """Of each line, whether it is one of a loop over the elements of a row."""
    found: list[bool] = []
    indent: int | None = None
    for line in lines:
        loop = _LOOP.match(line)
        if loop:
            indent = len(loop[1])
        elif indent is not None and line.strip() and len(line) - len(line.lstrip()) <= indent:
            indent = None
        found.append(indent is not None and not loop)
    return found


def _instructions(line: str) -> int:
    divisions = _INDEX_DIVISION * (line.count("//") + line.count("%"))
    if _INDEX.match(line):
        return divisions
    if not ("tmp" in line or "tl.store" in line):
        return 0
    if "tl.load" in line:
        return divisions + (_GUARDED_LOAD if _GUARD.search(line) else 1)
    called = sum(_INSTRUCTIONS.get(name, 0) for name in _CALL.findall(line))
    quotients = _DIVISION * line.count(" / ")
    return divisions + called + quotients + bool(_VALUE.match(line) or "tl.store" in line)

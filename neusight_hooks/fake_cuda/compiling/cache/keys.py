"""What decides how a graph is compiled for a forecast, and stands in none of torch's own keys."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from neusight import predictors
from neusight.fake_cuda.compiling.origins import path_of

#: Folders of neusight whose files decide what is traced, generated and kept.
_DECIDING = ("fake_cuda", "ops", "recording")

_SUFFIXES = (".json", ".npz", ".py")

#: Namespaces of ops that come with torch, whose backward and decomposition its version says.
_NAMESPACES = frozenset({"aten", "prims", "prim", "higher_order", "inductor_prims", "rngprims"})


@cache
def source_version() -> str:
    """A digest of neusight's code that has to do with compiling, of what prices come from, and of
    Python's version."""
    hooks = Path(__file__).parents[3]
    prices = Path(str(predictors.__file__)).parent
    found = hashlib.sha256(sys.version.encode())
    for folder in (*(hooks / name for name in _DECIDING), prices):
        for path in sorted(folder.rglob("*.*")):
            if path.suffix in _SUFFIXES:
                found.update(str(path.relative_to(folder)).encode())
                found.update(path.read_bytes())
    return found.hexdigest()


def settings() -> tuple[object, ...]:
    """Settings of torch that decide which ops and kernels a graph becomes."""
    backends: Any = torch.backends
    cuda, cudnn = backends.cuda, backends.cudnn
    return (
        torch.is_inference_mode_enabled(),
        str(torch.get_default_device()),
        torch.get_float32_matmul_precision(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(),
        tuple(torch._C._get_sdp_priority_order()),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        torch._C._get_cudnn_sdp_enabled(),
    )


def facts_of(graph: Any, *, with_lines: bool = False) -> Iterator[str]:
    """Of each op what torch's key of the graph leaves out: the module that called it, and what it
    returns, which for an op of the program's own its code decides; the lines that led there, too,
    where messages name them."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                yield path_of(node)
                if with_lines:
                    yield node.meta.get("stack_trace") or ""
                yield _facts_of_value(node.meta.get("val", node.meta.get("example_value")))


def _facts_of_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return f"{tuple(value.shape)} {strides} {value.dtype} {value.device}"
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_facts_of_value, value))
    return type(value).__name__


def aliases(inputs: Sequence[Any]) -> tuple[int, ...]:
    """For each tensor which input is the first with its memory: AOTAutograd joins views of one."""
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(value.untyped_storage()._cdata, place)
        for place, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    )


def calls_only_torch(graph: Any) -> bool:
    """Whether no op in it is the program's own: how such a one is differentiated is in no key."""
    return all(
        _namespace(node.target) in _NAMESPACES
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    )


def _namespace(op: Any) -> str:
    packet = getattr(op, "overloadpacket", op)
    return str(packet._qualified_op_name).partition("::")[0]


def digest(parts: Iterable[object]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part).encode())
    return found.hexdigest()

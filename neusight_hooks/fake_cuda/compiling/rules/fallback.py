"""Runs what cannot be compiled here eagerly, and reports it; errors of torch itself are raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

from neusight.fake_cuda.patching import Patches
from neusight.interrupts import runs_the_program
from neusight.predictors.errors import NeusightError
from neusight.recording.call_stack import file_name
from neusight.recording.tensor import ForecastMode

#: Errors that a GPU would show too.
_OF_TORCH = ("GPUTooOldForTriton",)
#: Attribute of an error with the program's line of the graph that it is of.
_LINE = "neusight_line_of_graph"


def install_fallback(patches: Patches, mode: ForecastMode, warn: Callable[[str], None]) -> None:
    """Forecasts a graph that Inductor fails on as eager, with a warning that names it."""
    _install_frames(patches, warn)
    _install_graphs(patches, mode, warn)


def _install_frames(patches: Patches, warn: Callable[[str], None]) -> None:
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

    convert_frame: Any = import_module("torch._dynamo.convert_frame")
    compile_frame: Callable[..., Any] = convert_frame._compile
    failed: list[str] = []
    _install_counting(patches, failed)

    def compile_or_leave(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        try:
            return compile_frame(code, *args, **kwargs)
        except (BackendCompilerFailed, InternalTorchDynamoError, AssertionError) as error:
            if not _is_ours(error) or _is_other_assertion(error):
                raise
            of_frame = f"{_name(code.co_filename)}:{code.co_firstlineno}"
            place = getattr(_cause(error), _LINE, of_frame)
            warn(f"a graph is forecast as eager: {place} {_reason(error)}")
            failed.append(place)
            return convert_frame.ConvertFrameReturn()  # runs as it is

    patches.set(convert_frame, "_compile", compile_or_leave)


def _install_graphs(patches: Patches, mode: ForecastMode, warn: Callable[[str], None]) -> None:
    """Compiling is not recorded as work of the program. A graph of a backward is compiled inside
    `backward()`, where no frame could run eager instead: its ops run one by one."""
    from torch._inductor import compile_fx

    compile_graph: Callable[..., Any] = compile_fx._InProcessFxCompile.codegen_and_compile

    @runs_the_program  # as in tracing.py; the backward's graph is compiled outside of a frame
    def codegen_and_compile(
        self: Any, gm: Any, inputs: Any, inputs_to_check: Any, graph_kwargs: Any
    ) -> Any:
        try:
            with mode.inside():
                return compile_graph(self, gm, inputs, inputs_to_check, graph_kwargs)
        except Exception as error:
            place = line_of(gm)
            if graph_kwargs.get("is_backward") and _is_ours(error):
                warn(
                    f"a backward graph is forecast as its ops one by one: {place} {_reason(error)}"
                )
                return _ops_one_by_one(gm)
            if place:
                setattr(_cause(error), _LINE, place)
            raise

    patches.set(compile_fx._InProcessFxCompile, "codegen_and_compile", codegen_and_compile)


def _install_counting(patches: Patches, failed: list[str]) -> None:
    """Torch (from 2.12 on) refuses, with `fullgraph=True`, a call in which nothing was compiled."""
    eval_frame: Any = import_module("torch._dynamo.eval_frame")
    if not hasattr(eval_frame, "set_fullgraph_compiled_frame_count"):
        return
    count: Callable[[int], int] = eval_frame.set_fullgraph_compiled_frame_count

    def count_failed_too(value: int) -> int:
        counted = count(value)
        return 1 if counted == 0 and failed else counted

    patches.set(eval_frame, "set_fullgraph_compiled_frame_count", count_failed_too)


def _is_ours(error: Any) -> bool:
    """Whether a GPU would have compiled it, as far as is known: backends that are functions of
    the program's own fail as they do."""
    cause = _cause(error)
    if type(cause).__name__ in _OF_TORCH or isinstance(cause, NeusightError):
        return False
    return getattr(error, "backend_name", "inductor") in ("inductor", "compile_fx")


#: What Dynamo says of jagged tensors, whose lengths are on the CPU and their values without data.
_MIXED = "mixed fake and real tensors"


def _is_other_assertion(error: Exception) -> bool:
    return isinstance(error, AssertionError) and _MIXED not in str(error)


def _cause(error: Any) -> Any:
    """What a compiler's error stands for: Inductor wraps what is raised, Dynamo that again."""
    while isinstance(getattr(error, "inner_exception", None), BaseException):
        error = error.inner_exception
    return error


def _reason(error: BaseException) -> str:
    cause = _cause(error)
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}"


def _ops_one_by_one(graph: Any) -> Any:
    """Replaces compiled code by the graph that AOTAutograd made, op by op."""
    from torch._inductor.output_code import MockFXGraphCacheOutput

    def run(inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()  # callers of compiled code give up its inputs
        return graph(*given)

    return MockFXGraphCacheOutput(run)


def line_of(graph: Any) -> str:
    """The program's line of the first op of a graph, "" where it is not known."""
    for node in graph.graph.nodes:
        files = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        if files:
            path, line = files[-1]
            return f"{_name(path)}:{line}"
    return ""


def _name(path: str) -> str:
    """The file's name alone; a notebook's cell as its number."""
    return Path(file_name(path, "/") or path).name

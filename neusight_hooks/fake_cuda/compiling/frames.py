"""What Dynamo made of the program's functions: graphs, breaks and recompiles, as torch says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from neusight.fake_cuda.patching import Patches
from neusight.recording.call_stack import CallStacks, file_name
from neusight.recording.recording import CompiledFrame, GraphBreak


def install_frames(
    patches: Patches, compiled: list[CompiledFrame], stacks: CallStacks | None
) -> None:
    """Each function that Dynamo compiles is recorded, with torch's own reasons for what it did."""
    convert_frame: Any = import_module("torch._dynamo.convert_frame")
    compile_frame: Callable[..., Any] = convert_frame._compile
    find_reasons: Callable[..., list[str]] = convert_frame.get_and_maybe_log_recompilation_reasons
    frames = _FrameRecorder(compiled, f"{Path.cwd()}/" if stacks is None else stacks.folder)

    def recorded(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        with frames.of(code, str(kwargs.get("compile_id"))):
            return compile_frame(code, *args, **kwargs)

    def reasons(*args: Any, **kwargs: Any) -> list[str]:
        frames.recompiled = find_reasons(*args, **kwargs)
        return frames.recompiled

    patches.set(convert_frame, "_compile", recorded)
    patches.set(convert_frame, "get_and_maybe_log_recompilation_reasons", reasons)


#: How torch words the borders between graphs that let DistributedDataParallel reduce a bucket while
#: the next one computes (torch/_dynamo/backends/distributed.py, 2.13): they need no fix.
_INTENDED = "DDPOptimizer intentional graph-break"


class _Place(NamedTuple):
    """A line of some file; torch's stacks and code objects say which."""

    filename: str
    number: int


class _FrameRecorder:
    """Writes down what was compiled, by what torch counts and lists meanwhile."""

    def __init__(self, compiled: list[CompiledFrame], folder: str) -> None:
        self.recompiled: list[str] = []
        self._compiled = compiled
        self._folder = folder

    @contextmanager
    def of(self, code: CodeType, frame_id: str) -> Iterator[None]:
        """Notes the function that is compiled in here, if a graph or a break came of it."""
        from torch._dynamo.exc import Unsupported

        output_graph: Any = import_module("torch._dynamo.output_graph")
        self.recompiled = []
        num_before, known = _num_captured(), len(output_graph.graph_break_reasons)
        failed: Unsupported | None = None
        is_compiled = False
        try:
            yield
            is_compiled = True
        except Unsupported as error:  # the function runs as it is
            failed = error
            raise
        finally:
            breaks = [
                self._break(reason.reason, reason.user_stack, code)
                for reason in output_graph.graph_break_reasons[known:]
                if not reason.reason.startswith(_INTENDED)
            ]
            if failed is not None:
                stack = getattr(failed, "real_stack", None) or ()
                breaks.append(self._break(str(failed), stack, code))
            num_ops = _num_captured() - num_before if is_compiled else 0
            self._record(code, frame_id, num_ops, tuple(dict.fromkeys(breaks)))

    def _record(
        self, code: CodeType, frame_id: str, num_ops: int, breaks: tuple[GraphBreak, ...]
    ) -> None:
        is_of_program = bool(file_name(code.co_filename, self._folder))
        if not num_ops and not (is_of_program and breaks):
            return
        first = _Place(code.co_filename, code.co_firstlineno)
        recompiled, place = guard_reason(self.recompiled[0]) if self.recompiled else ("", None)
        self._compiled.append(
            CompiledFrame(
                frame_id,
                code.co_name,
                self._words(first),
                num_ops,
                recompiled,
                self._words(_Place(*place) if place else first) if recompiled else "",
                breaks,
            )
        )

    def _break(self, reason: str, stack: Sequence[Any], code: CodeType) -> GraphBreak:
        lines = [_Place(item.filename, item.lineno) for item in stack]
        lines = lines or [_Place(code.co_filename, code.co_firstlineno)]
        own = [line for line in lines if file_name(line.filename, self._folder)] or lines
        return GraphBreak(self._words(own[-1]), self._words(own[0]), break_reason(reason))

    def _words(self, line: _Place) -> str:
        name = file_name(line.filename, self._folder)
        if not name:  # of torch itself, such as an optimizer's step
            name = re.sub(r".*/(site|dist)-packages/", "", line.filename)
            name = Path(name).name if name.startswith("/") else name
        return f"{name}:{line.number}"


def _num_captured() -> int:
    """Ops in all graphs so far, as Dynamo counts them."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["calls_captured"])


def break_reason(text: str) -> str:
    """Torch's reason for a break in a line: what it could not do, and to what.

    >>> break_reason("Failed to trace it\\n  Explanation: Dynamo cannot trace `print` here\\n")
    'Failed to trace it: print'
    """
    first, _, rest = text.strip().partition("\n")
    named = re.search(r"Explanation:[^\n]*?`([^`\n]+)`", rest)
    return first if named is None or named[1] in first else f"{first}: {named[1]}"


#: Numbers of this many digits are addresses, other ones in each run.
_ADDRESS = re.compile(r"\b\d{9,}\b")
_FRAME_ID = re.compile(r"^!?\d+/[\d_/]+: ")
_STACK = re.compile(r'User stack trace:\s+(?:.*\n)*?\s*File "([^"]+)", line (\d+)')


def guard_reason(text: str) -> tuple[str, tuple[str, int] | None]:
    """Torch's reason for a recompile in a line: the guard that failed; and the file and line that
    the guard is about, where it says.

    >>> guard_reason("0/0: tensor 'x' size mismatch at index 0. expected 64, actual 32")
    ("tensor 'x' size mismatch at index 0. expected 64, actual 32", None)
    """
    first = text.strip().partition("\n")[0]
    condition = _ADDRESS.sub("…", _FRAME_ID.sub("", first)).partition("  #")[0].strip()
    found = _STACK.search(text)
    return condition, (found[1], int(found[2])) if found else None

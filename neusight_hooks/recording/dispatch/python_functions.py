"""The Python functions that run, torch's included, named as torch's profiler does with stacks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from types import CodeType, FrameType

import torch
from torch.autograd import graph

from neusight.recording.call_stack import CallStacks, ProgramThreads, path_name
from neusight.recording.tape import (
    CPU_WORK,
    CallWriter,
    PythonCall,
    TapedFunctions,
    TapedOp,
    TapeEntry,
)

#: What a module's call begins with, which the event of the module stands for; and what autograd's
#: engine is run by, in which its nodes are.
_MODULE = torch.nn.Module._wrapped_call_impl.__code__
_ENGINE = graph._engine_run_backward.__code__
#: What neusight answers an op by: what that calls is not the program's.
_ANSWER = "__torch_dispatch__"

#: Files of torch whose functions run around hooks, which a profiled program does not have, or
#: which begin annotations that outlast them; and the only ones of these, where not all are.
_HIDDEN = {"torch/nn/modules/module.py": ("inner",), "torch/autograd/profiler.py": ()}


class PythonFunctions:
    """Shows which functions of the program run, quickly: the same place gives the same object."""

    def __init__(self, stacks: CallStacks) -> None:
        self._stacks = stacks
        self._names: dict[int, str] = {}
        self._keep: list[CodeType] = []
        self._known: dict[tuple[int, ...], TapedFunctions] = {}

    def with_calls(
        self, write_calls: CallWriter, entries: list[TapeEntry], threads: ProgramThreads
    ) -> CallWriter:
        """Writes the functions that run before each entry, then what operators did."""
        write = entries.append

        def entry_comes(key: Hashable, op: TapedOp | None) -> None:
            # Before work on the CPU comes to its end, what comes next runs already.
            if key is not None and key != CPU_WORK and threading.get_ident() == threads.main:
                in_node = op is not None and bool(op.node)
                write(self.here(in_node=in_node, at_module=_is_of_module(key)))
            write_calls(key, op)

        return entry_comes

    def here(self, *, in_node: bool = False, at_module: bool = False) -> TapedFunctions:
        """Those that run, in a node of autograd those that run the engine; where a module begins
        or ends, those around it."""
        names, caller = self._names, self._stacks.caller
        key: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not caller:
            code = frame.f_code
            number = id(code)
            name = names.get(number)
            if name is None:
                self._keep.append(code)  # its identity must not be used again
                name = names[number] = self._name_of(frame)
            is_module, is_engine = at_module and code is _MODULE, in_node and code is _ENGINE
            if is_module or is_engine or name is _ANSWER:
                key.clear()
                at_module = at_module and not is_module
            if name and name is not _ANSWER:
                key.append(frame.f_lasti)
                key.append(number)
            frame = frame.f_back
        place = tuple(key)
        known = self._known.get(place)
        if known is None:
            # A call is made by a function at one of its instructions.
            calls = zip(key[1::2], [*key[2::2], 0], strict=True)
            found = [PythonCall(names[number], at) for number, at in calls]
            known = self._known[place] = TapedFunctions(tuple(reversed(found)))
        return known

    def _name_of(self, frame: FrameType) -> str:
        """The name of a function; "" where it is none of the program's or is not shown."""
        code = frame.f_code
        if str(frame.f_globals.get("__name__")).startswith("neusight."):
            return _ANSWER if code.co_name == _ANSWER else ""
        if code is _MODULE:
            return ""
        path = path_name(code.co_filename, self._stacks.folder)
        if path in _HIDDEN and (not _HIDDEN[path] or code.co_name in _HIDDEN[path]):
            return ""
        return f"{path}({code.co_firstlineno}): {code.co_name}"


def _is_of_module(key: Hashable) -> bool:
    """Whether an entry is the begin or end of a module."""
    return isinstance(key, tuple) and key[0] in ("module_begin", "module_end")

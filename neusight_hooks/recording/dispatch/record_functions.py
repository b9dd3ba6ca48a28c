"""Torch's record functions reported to Python: at each operator that its dispatcher calls.

Torch's profilers get their operators from callbacks that C++ calls (ATen/record_function.h). Such
callbacks are added here, beside those of a profiler that the program uses. They read one thing of
an operator, its name, by a function that the library exports. Where the header of the installed
wheel is not the one that is known, or `CHECK_PROGRAM` fails, they must not be added: a trace then
has no composite operators.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_ADD = "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE"
_REMOVE = "_ZN2at14removeCallbackEm"
_NAME = "_ZNK2at14RecordFunction4nameEv"

#: Scopes of operators and of autograd's nodes (at::RecordScope).
_FUNCTION, _BACKWARD_FUNCTION = 0, 1
_NUM_SCOPES = 10

#: The members of RecordFunctionCallback in torch 2.11 to 2.15, in order.
_MEMBERS = (
    "start_", "end_", "sampling_prob_", "scopes_", "needs_inputs_", "needs_outputs_", "needs_ids_",
)  # fmt: skip

#: Adds and removes callbacks in a process of its own; its last line says that all is well.
CHECK_PROGRAM = """
import torch
from neusight.recording.dispatch import record_functions
seen = []
def begins(record, number, is_node):
    seen.append((functions.name_of(record), number, is_node))
    return True
functions = record_functions.RecordFunctions(begins)
x = torch.ones(2, 2, requires_grad=True)
for wanted in (True, False, True, False):
    functions.switch(wanted)
    torch.nn.functional.linear(x, x).sum().backward()
    functions.switch(False)
    names = [(name, is_node) for name, _, is_node in seen]
    assert ((b"aten::linear", False) in names) == wanted, seen
    assert ((b"SumBackward0", True) in names) == wanted, seen
    assert all(functions.has_ended(number) for _, number, _ in seen), seen
    seen.clear()
class Open:
    @staticmethod
    def is_open(): return not functions.has_ended(seen[-1][1])
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        assert b"FunctionBackward" in seen[-1][0] and Open.is_open(), seen
        raise KeyError("kept")
functions.switch(True)
try:
    Function.apply(x).backward(x)
except KeyError as error:
    assert error.args == ("kept",)
else:
    raise AssertionError("the error is lost")
assert all(functions.has_ended(number) for _, number, _ in seen), seen
functions.switch(False)
print("neusight-core-ok")
"""


class _RecordFunctionCallback(ctypes.Structure):
    """at::RecordFunctionCallback."""

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("sampling_prob", ctypes.c_double),
        ("scopes", ctypes.c_bool * _NUM_SCOPES),
        ("needs_inputs", ctypes.c_bool),
        ("needs_outputs", ctypes.c_bool),
        ("needs_ids", ctypes.c_bool),
    )


# `unique_ptr<ObserverContext> (*)(const RecordFunction&)`: the pointer is returned by its address.
_Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

#: Operators that may run at once, one in the other.
_MOST_OPEN = 1024

# Called from C++ for as long as an operator runs that began while they were added.
_keep_alive: list[object] = []


def is_known_header() -> bool:
    """Whether the installed torch declares its callbacks as the ones that are known."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "record_function.h"
    try:
        text = header.read_text()
    except OSError:
        return False
    scopes = re.search(
        r"enum class C10_API_ENUM RecordScope : uint8_t \{(.*?)NUM_SCOPES", text, re.S
    )
    callback = re.search(r"class TORCH_API RecordFunctionCallback \{(.*?)\n\};", text, re.S)
    if scopes is None or callback is None:
        return False
    private = callback[1].rpartition("private:")[2]
    names = re.findall(r"^  [A-Z_]+(?: = 0)?,", scopes[1], re.M)
    members = tuple(re.findall(r"(\w+_)(?: = [^;]*)?;", private))
    return len(names) == _NUM_SCOPES and members == _MEMBERS


def _library() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library[_ADD].argtypes = [_RecordFunctionCallback]
    library[_ADD].restype = ctypes.c_uint64
    library[_REMOVE].argtypes = [ctypes.c_uint64]
    library[_REMOVE].restype = None
    return library


class RecordFunctions:
    """Adds callbacks for operators and nodes, and removes them.

    There is none for ends: it would run in Python while the error of an op is on its way through
    C++, and Python would lose the error. Instead each begin returns an object of C++ that torch
    destroys when the operator ends; its destructor is `time` of the C library, which writes to the
    object.
    """

    def __init__(self, begins: Callable[[int, int, bool], bool]) -> None:
        table = (ctypes.c_void_p * 2)(*[_address(ctypes.CDLL(None)["time"])] * 2)
        contexts = (ctypes.c_size_t * _MOST_OPEN)()
        self._library = _library()
        self._table = ctypes.addressof(table)
        # Read several times an operator: half the time that the array of ctypes takes.
        self._contexts = memoryview(contexts).cast("B").cast("P")
        self._handles: list[int] = []
        #: The name of the operator that begins just now.
        #: (It returns at once, so that it keeps Python's lock.)
        self.name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)((_NAME, self._library))
        starts = self._starts(begins, ctypes.addressof(contexts))
        self._callbacks = [
            _callback(scope, start)
            for scope, start in zip((_FUNCTION, _BACKWARD_FUNCTION), starts, strict=True)
        ]
        _keep_alive.extend((table, contexts))

    def switch(self, wanted: bool) -> None:
        """Adds the callbacks or removes them."""
        while self._handles:
            self._library[_REMOVE](self._handles.pop())
        if wanted:
            self._handles = [self._library[_ADD](callback) for callback in self._callbacks]

    def has_ended(self, number: int) -> bool:
        """Whether the operator has ended that got this number when it began."""
        return self._contexts[number] != self._table

    def _starts(self, begins: Callable[[int, int, bool], bool], address: int) -> list[Any]:
        """What torch calls when an operator begins, and when a node does."""
        contexts, table = self._contexts, self._table
        word, at = ctypes.sizeof(ctypes.c_size_t), ctypes.c_size_t.from_address
        number = 0

        def of(is_node: bool) -> Callable[[int, int], int]:
            def begin(returned: int, record: int) -> int:
                nonlocal number
                if contexts[number] == table:  # that of an operator that still runs
                    number = (number + 1) % _MOST_OPEN
                elif begins(record, number, is_node):
                    contexts[number] = table
                    at(returned).value = address + number * word
                    number = (number + 1) % _MOST_OPEN
                    return returned
                at(returned).value = 0
                return returned

            return begin

        return [_Start(of(False)), _Start(of(True))]


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _callback(scope: int, start: Any) -> _RecordFunctionCallback:
    _keep_alive.append(start)
    made = _RecordFunctionCallback(_address(start), None, 1.0)
    made.scopes[scope] = True
    return made

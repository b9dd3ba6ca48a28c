"""Python functions as objects of the class that functions written in C have."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

#: METH_VARARGS | METH_KEYWORDS (Include/methodobject.h).
_ANY_ARGUMENTS = 0x0001 | 0x0002


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef (Include/methodobject.h)."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def as_builtin(original: Any, function: Callable[..., Any]) -> Any:
    """A builtin function that calls `function`, with the name and the signature of `original`.

    Programs compare the class of `open` with that of `print`; and a builtin function that a class
    keeps as an attribute is not bound to its objects.

    >>> double = as_builtin(abs, lambda x: 2 * x)
    >>> double(4), type(double) is type(abs), double.__name__
    (8, True, 'abs')
    """
    make: Any = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return make(_definition(original), function, original.__module__)


@functools.cache
def _definition(original: Any) -> int:
    """The address of a definition that is never freed: functions made of it point to it."""
    signature = original.__text_signature__
    head = f"{original.__name__}{signature}\n--\n\n" if signature else ""
    definition = _MethodDefinition(
        original.__name__.encode(),
        # It takes what a method with any arguments is called with: an object, a tuple, a dict.
        ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p),
        _ANY_ARGUMENTS,
        (head + (original.__doc__ or "")).encode(),
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return ctypes.addressof(definition)

"""What a process that ran a program returns to its parent, in bytes that only hold values.

A pickle names what is called when it is read. The parent may write everywhere, and the program had
the process to itself: so none but the classes of a recording, plain values and known errors are
called here.
"""

from __future__ import annotations

import builtins
import io
import pickle
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

#: Modules of which every class is a value.
_MODULES_OF_VALUES = (
    "neusight.ops.user_ops",
    "neusight.predictors.errors",
    "neusight.predictors.kernel",
    "neusight.recording.recording",
)
_VALUES = {
    ("builtins", "complex"),
    ("builtins", "frozenset"),
    ("builtins", "set"),
    ("multiprocessing.pool", "RemoteTraceback"),
    ("multiprocessing.pool", "rebuild_exc"),
    ("neusight.exit_codes", "ExitCode"),
    ("neusight.integrations.program.recorded", "Recorded"),
    ("neusight.integrations.program.runner", "Outcome"),
}


class UnknownResultError(Exception):
    """A result contains something that neusight never sends."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _VALUES or module in _MODULES_OF_VALUES or module == "builtins":
            if "." in name:  # an attribute of a class
                raise UnknownResultError(f"{module}.{name}")
            found = super().find_class(module, name)
            if (module, name) in _VALUES or _is_value(found, module):
                return found
        raise UnknownResultError(f"{module}.{name}")


def _is_value(found: Any, module: str) -> bool:
    """Whether it is a class of that module; of builtins, whether it is an exception."""
    if not isinstance(found, type) or found.__module__ != module:
        return False
    return module != builtins.__name__ or issubclass(found, BaseException)


def encoded(value: object) -> bytes:
    """The bytes that `decoded` reads."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def encoded_error(error: BaseException) -> bytes:
    """An exception, with its traceback as text; one of a class that is not known is a RuntimeError
    that names it."""
    try:
        data = encoded(ExceptionWithTraceback(error, error.__traceback__))
        decoded(data)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        return encoded(ExceptionWithTraceback(plain, error.__traceback__))
    return data


def decoded(data: bytes) -> Any:
    """The value; UnknownResultError if it is damaged or not allowed."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except UnknownResultError:
        raise
    except Exception as error:
        raise UnknownResultError(f"{type(error).__name__}: {error}") from None

"""An answer of another process is read as values, and nothing in it is called."""

from __future__ import annotations

import os
import pickle
import pickletools
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.results import (
    UnknownResultError,
    decoded,
    encoded,
    encoded_error,
)
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.runner import Outcome
from neusight.predictors.errors import OptionError
from neusight.recording.recording import (
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    Synchronize,
    TensorSpec,
)


class _Odd(Exception):
    def __reduce__(self) -> str:
        raise TypeError("not this one")


class _Calling:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def test_a_recording_comes_back() -> None:
    tensor = TensorSpec((2, 3), (3, 1), "float32")
    call = OpCall(
        OpSignature("aten::add", "", (("self", tensor),), (tensor,)),
        math=MathMode(), module="a", phase="forward", stream=0, sequence_nr=1,
    )  # fmt: skip
    entries = (call, Synchronize("item", "cpu", 0))
    recording = Recording((Step("eval", entries),), "H100", "2.13.0", options={"a": "b"})
    answer = Recorded(
        Outcome("stopped", exit_code=ExitCode.INTERRUPTED),
        recording,
        files="abc",
        ranks=(recording,),
    )

    assert decoded(encoded((answer,))) == (answer,)


def test_an_error_reaches_another_process_whatever_it_is() -> None:
    plain = decoded(encoded_error(ValueError("no such layer")))
    own = decoded(encoded_error(OptionError("not like this")))
    odd = decoded(encoded_error(_Odd("of a library")))
    foreign = decoded(encoded_error(pickle.PicklingError("of Python's library")))

    assert (type(plain), str(plain)) == (ValueError, "no such layer")
    assert (type(own), str(own)) == (OptionError, "not like this")
    assert (type(odd), str(odd)) == (RuntimeError, "_Odd: of a library")
    assert (type(foreign), str(foreign)) == (RuntimeError, "PicklingError: of Python's library")


@pytest.mark.parametrize(
    "value",
    [
        _Calling(os.system, "echo called > called"),
        _Calling(subprocess.Popen, ["touch", "called"]),
        _Calling(eval, "open('called', 'w')"),
        _Calling(open, "called", "w"),
        _Calling(getattr, OptionError, "__init__"),
        _Calling(__import__, "os"),
        _Calling(pickle.loads, b""),
        _Calling(type, "X", (), {}),
    ],
)
def test_what_would_call_something_is_refused(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (encoded(value), pickle.dumps([value], 0), pickle.dumps({"a": value}, 2)):
        with pytest.raises(UnknownResultError):
            decoded(data)

    assert os.listdir() == []


@pytest.mark.parametrize(
    "name",
    ["OptionError.__init__", "OptionError.mro", "annotations", "NeusightError.__subclasses__"],
)
def test_nor_is_part_of_a_known_class_reached(name: str) -> None:
    data = b"\x80\x04\x8c\x1aneusight.predictors.errors" + b"\x8c"
    data += bytes([len(name)]) + name.encode() + b"\x93."
    assert [code.name for code, _, _ in pickletools.genops(data)][-2] == "STACK_GLOBAL"

    with pytest.raises(UnknownResultError):
        decoded(data)


def test_a_damaged_answer_is_refused() -> None:
    data = encoded({"a": [1, 2, 3]})

    for damaged in (b"", data[:-3], b"\x80\x63" + data[2:]):
        with pytest.raises(UnknownResultError):
            decoded(damaged)

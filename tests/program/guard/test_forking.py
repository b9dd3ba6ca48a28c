"""What a forked process passes on, and how its end is told."""

from __future__ import annotations

import pickle
import signal

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.forking import pickled_error, words_of_end


class _Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise TypeError("not this one")


def test_an_error_reaches_another_process_whatever_it_is() -> None:
    plain = pickle.loads(pickled_error(ValueError("no such layer")))
    odd = pickle.loads(pickled_error(_Unpicklable("of a library")))

    assert (type(plain), str(plain)) == (ValueError, "no such layer")
    assert (type(odd), str(odd)) == (RuntimeError, "_Unpicklable: of a library")


def test_an_end_without_an_answer_is_told_in_words() -> None:
    assert words_of_end(-signal.SIGINT) == ("interrupted", ExitCode.INTERRUPTED)
    assert words_of_end(7) == ("it ended its process at once, with status 7 (os._exit)", 7)
    assert words_of_end(-signal.SIGSEGV) == (
        "its process was killed by SIGSEGV inside a C library",
        128 + signal.SIGSEGV,
    )
    assert words_of_end(-50)[0] == "its process was killed by signal 50"

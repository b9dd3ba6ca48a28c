"""What a forked process passes on, and how its end is reported."""

from __future__ import annotations

import signal

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.forking import text_of_end


def test_an_end_without_an_answer_is_reported_in_text() -> None:
    assert text_of_end(-signal.SIGINT) == ("interrupted", ExitCode.INTERRUPTED)
    assert text_of_end(7) == ("it ended its process at once, with status 7 (os._exit)", 7)
    assert text_of_end(-signal.SIGSEGV) == (
        "its process was killed by SIGSEGV inside a C library",
        128 + signal.SIGSEGV,
    )
    assert text_of_end(-50)[0] == "its process was killed by signal 50"

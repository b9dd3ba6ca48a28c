"""`python -m neusight` is the command `neusight`."""

from __future__ import annotations

import gc
import os
import signal
import sys

from neusight.compatibility.releases import refuse_platform
from neusight.exit_codes import ExitCode
from neusight.interrupts import end_at_once
from neusight.predictors.errors import UnsupportedTorchError


def main() -> int:
    """Runs the command, which Ctrl-C ends with one line at any time; its exit code."""
    if os.name == "nt":  # no command can be loaded there; elsewhere those that run nothing work
        try:
            refuse_platform()
        except UnsupportedTorchError as error:
            print(f"neusight: {error}", file=sys.stderr)
        return ExitCode.NEUSIGHT_FAILED
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    gc.disable()  # modules stay: looking for garbage while they load finds none
    from neusight.integrations.cli import main as cli

    gc.enable()
    try:
        return cli.main()
    finally:
        gc.freeze()  # all goes with the process: else Python looks through torch for cycles, 0.4 s
        # All is printed: while Python takes torch down, Ctrl-C ends it without a word.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())

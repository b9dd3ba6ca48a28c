"""Whether this build of torch compiles inside a forecast, tried in a process of its own."""

from __future__ import annotations

from neusight._version import __version__
from neusight.fake_cuda.core import build_key, failure_apart
from neusight.predictors.files import user_cache_folder

#: A forward and its backward; no process below this one checks again.
_PROGRAM = """
import torch
import neusight
from neusight.fake_cuda.compiling import compiler
from neusight.fake_cuda.core import SELF_CHECK_PASSED
compiler.compile_failure = lambda: ""
with neusight.forecast_on("H100", allow_writes=True) as forecast:
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    torch.compile(lambda x: torch.relu(x @ x).sum())(x).backward()
eager = [text for text in forecast.warnings if "eager" in text or "one by one" in text]
assert not eager, eager[0]
names = [kernel.name for kernel, _ in forecast.kernels]
assert sum(name.startswith("triton_") for name in names) > 1, "no kernel was fused"
print(SELF_CHECK_PASSED)
"""

#: What Ctrl-C leaves as the last line of a program that it ended.
_INTERRUPTED = "KeyboardInterrupt"

_failures: list[str] = []  # what came of it in this process


def compile_failure() -> str:
    """Why torch.compile cannot be forecast as it runs, in words; empty where it can.

    It takes some ten seconds once for each build of torch; that it passed is kept in the user's
    cache folder. SlowMachineError where it did not end in time.
    """
    if not _failures:
        kept = user_cache_folder() / f"compile-{build_key()}-{__version__}.json"
        reason = failure_apart(_PROGRAM, kept, NEUSIGHT_COMPILE_CACHE="0")
        if _INTERRUPTED in reason:
            return reason
        _failures.append(reason)
    return _failures[0]

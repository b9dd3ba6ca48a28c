"""Python processes that begin with torch loaded, for tests of what a whole command does.

A fresh process spends two seconds of CPU on imports before it comes to what a test looks at. So one
server imports them once and forks a process for each call, with arguments, folder, environment and
streams of its own; from there it does as `python` does, but for taking its modules apart at its
end, which takes as long as a small forecast. What starts Python by itself (hash seeds, import
times, -W, Ctrl-C while something loads), or looks at its last moments, is for `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NamedTuple, NoReturn

#: Beginnings of variables that act while Python or torch starts, but for the path.
_TOO_LATE = ("PYTHON", "OMP_", "MKL_", "LD_")


class Call(NamedTuple):
    """One process: its words behind `python`, and the folder that its streams are written to."""

    words: list[str]
    cwd: str
    env: dict[str, str]
    streams: str


def run_python(
    *words: str, cwd: str | Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python SCRIPT …`, `python -m MODULE …` or `python -c PROGRAM …` printed, and its exit
    code. `env` is all of the environment (default: this process's); what acts only while Python
    starts cannot differ."""
    assert env is None or _starting(env) == _starting(os.environ), "use subprocess"
    with tempfile.TemporaryDirectory(prefix="streams-") as streams:
        call = Call(
            list(words), str(cwd or Path.cwd()), dict(os.environ if env is None else env), streams
        )
        code = _exit_code(call)
        out, err = (
            (Path(streams) / name).read_text(errors="replace") for name in ("stdout", "stderr")
        )
    return subprocess.CompletedProcess([sys.executable, *words], code, out, err)


class WarmProcess:
    """What `subprocess.Popen` gives for a process of Python, here one that has ended already."""

    #: What takes the place of the module where processes are started.
    MODULE = SimpleNamespace(DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: dict[str, str] | None = None,
        stdout: int | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        assert command[0] == sys.executable
        done = run_python(*command[1:], cwd=cwd, env=env)
        self.returncode = done.returncode
        if stderr is not None:
            stderr.write(done.stderr.encode())
            stderr.flush()

    def poll(self) -> int:
        """Its exit code."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Likewise."""
        return self.returncode


WarmProcess.MODULE.Popen = WarmProcess


def _starting(env: Mapping[str, str]) -> dict[str, str]:
    """What acts while a process starts."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_TOO_LATE) and name != "PYTHONPATH"
    }


def _exit_code(call: Call) -> int:
    """What the server answers; one that has ended, as by a test of signals, is started again."""
    for _ in range(2):
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        try:
            server.stdin.write(json.dumps(call) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return int(answer)
        _server.cache_clear()
        _end(server)
    raise AssertionError(f"the server of warm processes ends at once: {server.returncode}")


def _end(server: subprocess.Popen[str]) -> None:
    """Ends a server and its streams."""
    server.kill()
    server.wait()
    for stream in (server.stdin, server.stdout):
        with contextlib.suppress(OSError):
            assert stream is not None
            stream.close()


@cache
def _server() -> subprocess.Popen[str]:
    """The server of this process, ended with it."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_end, server)
    return server


def _serve() -> None:
    gc.disable()
    import neusight.integrations.cli.main
    from neusight.fake_cuda.core import self_check

    self_check()
    import neusight.fake_cuda.session
    import neusight.session  # noqa: F401
    from neusight.predictors.gpu import find_gpu
    from neusight.predictors.registry import find_predictor

    find_gpu("H100")
    find_predictor(None)
    gc.freeze()
    gc.enable()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            _be(Call(*json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be(call: Call) -> NoReturn:
    """Does as `python` does; the end of this process is the end of the call."""
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{call.streams}/stdout", os.O_WRONLY | os.O_CREAT),
        (2, f"{call.streams}/stderr", os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(call.cwd)
    os.environ.clear()
    os.environ.update(call.env)
    tempfile.tempdir = None
    try:
        _run(call)
    except SystemExit as error:  # others are printed and end the process as ever
        _leave(error.code)
    _leave(None)


def _run(call: Call) -> None:
    added = [folder for folder in call.env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    first, *arguments = call.words
    if first == "-m":
        first, *arguments = arguments
        sys.argv, sys.path[0:1] = [first, *arguments], [call.cwd, *added]
        runpy.run_module(first, run_name="__main__", alter_sys=True)
    elif first == "-c":
        program, *arguments = arguments
        sys.argv, sys.path[0:1] = ["-c", *arguments], [call.cwd, *added]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    else:
        folder = str(Path(first).resolve().parent)
        sys.argv, sys.path[0:1] = [first, *arguments], [folder, *added]
        runpy.run_path(first, run_name="__main__")


def _leave(code: object) -> NoReturn:
    """Ends as Python does after a program: threads, what is registered, garbage, streams."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # what Python itself calls
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _serve()

"""Tries some 400 ways of writing files: does what stood there stay, is what was written read back?

    python benchmarks/file_ways.py [--mode view --mode fallback --mode block] [--only TEXT] [--all]

The ways are those of tests/user_files.py and file_ways_of_packages.py. Each runs as a script in a
folder of its own, once without neusight and once in each mode. A way whose packages are missing is
left out. Exits 1 where a mode that protects all files changed one, or where a difference in what
was read back was not reported.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import torch  # noqa: E402
from file_ways_of_packages import WAYS as OF_PACKAGES  # noqa: E402
from guarded_files import standing  # noqa: E402

import neusight  # noqa: E402
import neusight.fake_cuda.session  # noqa: E402
import neusight.session  # noqa: E402
from neusight.integrations.cli.main import main as neusight_main  # noqa: E402
from neusight.integrations.program.guard.forking import leave_exit_to_parent  # noqa: E402
from neusight.integrations.program.guard.guarded_process import FILES_VARIABLE  # noqa: E402
from user_files import (  # noqa: E402
    C_LIBRARIES,
    CHILDREN_AND_EXIT,
    CUDA_WORK,
    MOVES_AND_REMOVALS,
    OTHERS,
    PREAMBLE,
    PYTHON,
    WORKER,
    furnish,
)

SEEN = """
print("SEEN", repr(sorted(seen) if type(seen) is list and all(type(s) is str for s in seen)
                   else seen).replace(os.getcwd(), "HERE"), flush=True)
"""
#: Modes in which nothing that stood there may change.
PROTECTING = ("view", "fallback")
MODES = (*PROTECTING, "block")
#: Seconds after which a way is ended.
LIMIT_S = 120.0
#: Said by neusight of a write that was refused, or went elsewhere.
REPORTED = ("refused", "were listed all the same")


class Result(NamedTuple):
    """How one way ended in one mode."""

    code: int
    output: str
    changed: tuple[str, ...]


def scripts() -> dict[str, str]:
    """Name -> the whole script."""
    found = {}
    groups = {"Python": {**PYTHON, **C_LIBRARIES, **MOVES_AND_REMOVALS}, "other": OTHERS}
    for group, ways in {**groups, "package": OF_PACKAGES}.items():
        for name, code in ways.items():
            found[f"{group}: {name}"] = f"{PREAMBLE}CUDA\n{code}\n{SEEN}"
    for name, (code, _) in CHILDREN_AND_EXIT.items():
        found[f"child: {name}"] = f"{PREAMBLE}CUDA\n{code}\n"
    return found


def run(mode: str, script: str, folder: Path) -> None:
    """In a process of its own: runs the script as the mode says."""
    os.chdir(folder)
    sys.path[0] = str(folder)
    os.environ.pop(FILES_VARIABLE, None)
    if mode in PROTECTING:
        if mode == "fallback":
            os.environ[FILES_VARIABLE] = "overlay"
        sys.argv = ["neusight", "run", "--gpu", "H100", "--steps", "all", "script.py"]
        raise SystemExit(neusight_main())
    sys.argv = ["script.py"]
    forecast = contextlib.nullcontext()
    if mode == "block" or "'cuda'" in script:
        forecast = neusight.forecast_on("H100", allow_writes=mode != "block")
    with forecast:
        runpy.run_path(str(folder / "script.py"), run_name="__main__")


def tried(mode: str, script: str, place: Path) -> Result:
    """Runs one way in a fresh folder."""
    folder = place / "way"
    folder.mkdir(parents=True)
    furnish(folder)
    (folder / "worker.py").write_text(WORKER)
    (folder / "own_function.py").write_text("def f(x):\n    return x * 2\n")
    cuda = "" if mode == "plain" else CUDA_WORK
    (folder / "script.py").write_text(script.replace("CUDA\n", cuda, 1))
    before = standing(folder)
    output = place / "output"
    child = os.fork()
    if child == 0:
        _be_child(mode, script, folder, output)
    status, ends = 0, time.monotonic() + LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    after = standing(folder)
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    text = output.read_text(errors="replace").replace(str(folder), "HERE")
    shutil.rmtree(place, ignore_errors=True)
    return Result(os.waitstatus_to_exitcode(status), text, tuple(sorted(changed)))


def _be_child(mode: str, script: str, folder: Path, output: Path) -> None:
    code = 70
    try:
        os.setsid()
        leave_exit_to_parent()
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, opened), (2, opened)):
            os.dup2(source, number)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ["PYTHONWARNINGS"] = "ignore"
        try:
            run(mode, script, folder)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)


def lines_seen(result: Result) -> list[str]:
    """What the script printed that it read back."""
    return [line for line in result.output.splitlines() if line.startswith("SEEN")]


def is_read_back(plain: Result, result: Result) -> bool:
    """Whether the script saw what it sees without neusight."""
    if lines_seen(plain):
        return lines_seen(result) == lines_seen(plain)
    printed = [line for line in plain.output.splitlines() if not line.startswith((" ", "Trace"))]
    return all(line in result.output for line in printed if "Error" not in line)


def is_reported(result: Result) -> bool:
    """Whether the user learns of the difference: by an exit code, an error or a note."""
    return result.code != 0 or any(word in result.output for word in REPORTED)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--only", default="", help="ways whose names contain this")
    parser.add_argument("--all", action="store_true", help="also name the ways that are as without")
    parser.add_argument("--output", action="store_true", help="show what a differing way printed")
    options = parser.parse_args()
    modes = options.mode or list(MODES)
    torch.set_num_threads(1)
    chosen = {name: code for name, code in scripts().items() if options.only in name}
    counts = {mode: {"unchanged": 0, "read back": 0, "reported": 0} for mode in modes}
    num_tried, missing, failed, is_wrong = 0, [], [], False
    with tempfile.TemporaryDirectory(prefix="file-ways-") as folder:
        for number, (name, script) in enumerate(chosen.items()):
            plain = tried("plain", script, Path(folder, f"{number}-plain"))
            if "SEEN" in script and not lines_seen(plain):
                lost = "ModuleNotFoundError" in plain.output or "AssertionError" in plain.output
                (missing if lost else failed).append(name)
                if not lost and options.output:
                    print(plain.output)
                continue
            num_tried += 1
            for mode in modes:
                result = tried(mode, script, Path(folder, f"{number}-{mode}"))
                is_same, is_kept = is_read_back(plain, result), not result.changed
                count = counts[mode]
                count["unchanged"] += is_kept
                count["read back"] += is_same
                count["reported"] += not is_same and is_reported(result)
                is_silent = not is_same and not is_reported(result)
                is_wrong |= mode in PROTECTING and (is_silent or not is_kept)
                if options.all or not (is_same and is_kept):
                    reported = "" if is_same else " SILENT" if is_silent else " reported"
                    changed = ", ".join(result.changed) or "nothing"
                    back = "read back" if is_same else "NOT read back"
                    print(f"{mode:9}{name}: changed {changed}; {back}{reported}", flush=True)
                    if options.output:
                        print(plain.output, result.output, sep="\n-- now --\n")
    print(f"\n{num_tried} ways; left out for their packages: {', '.join(missing) or 'none'}")
    if failed:
        print(f"fail without neusight too: {', '.join(failed)}")
    print(f"\n{'mode':9}{'unchanged':>12}{'read back':>12}{'reported':>12}{'silent':>9}")
    for mode, count in counts.items():
        silent = num_tried - count["read back"] - count["reported"]
        numbers = (*count.values(), silent)
        print(f"{mode:9}{numbers[0]:12}{numbers[1]:12}{numbers[2]:12}{numbers[3]:9}")
    return int(is_wrong)


if __name__ == "__main__":
    raise SystemExit(main())

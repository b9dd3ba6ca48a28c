"""Sends signals to commands at random moments: nothing may be left, changed, or shown as a fault.

    python benchmarks/file_signals.py [--runs 1000] [--seed 0] [--mode view --mode fallback]

Each run is `neusight run` of a script that writes, removes and starts programs, in a folder of its
own; most are forked from a process that has torch loaded, one in twenty is started afresh. One
signal or two come at a random moment: SIGINT, SIGTERM or SIGHUP, to the command or to its process
group. Prints each fault, and exits 1 where there was one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from guarded_files import standing

import neusight.fake_cuda.session  # noqa: F401  (so that forks have it)
from neusight.integrations.cli.main import main as neusight_main
from neusight.integrations.program.guard.forking import leave_exit_to_parent
from neusight.integrations.program.guard.guarded_process import FILES_VARIABLE

SCRIPT = """
import os, shutil, subprocess, torch
model = torch.nn.Linear(64, 64).cuda()
for step in range(6):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    torch.save(model.state_dict(), "model.pt")
    open("notes.txt", "a").write("more")
    os.makedirs(f"runs/{step}", exist_ok=True)
    open(f"runs/{step}/log", "w").write("new")
    subprocess.run("echo x >> log.csv; cp log.csv copy.csv; rm copy.csv", shell=True)
shutil.rmtree("runs")
os.remove("notes.txt")
"""
ARGUMENTS = ["run", "--quiet", "--gpu", "H100", "script.py"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Ends of a command that was interrupted, terminated, had ended before, or lost its script.
EXPECTED = {0, 3, 129, 130, 143, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP}
#: What a user must not see.
FAULTS = ("Traceback", "internal", "Fatal", "unlocked lock", "Exception ignored")
LIMIT_S = 60.0
COLD_EVERY = 20


def start(folder: Path, environment: dict[str, str], *, is_cold: bool) -> int:
    """The process of a command in a folder."""
    output = os.open(folder.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if is_cold:
        return subprocess.Popen(
            [sys.executable, "-m", "neusight", *ARGUMENTS], cwd=folder, stdout=output,
            stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
        ).pid  # fmt: skip
    child = os.fork()
    if child:
        os.close(output)
        return child
    code = 70
    try:
        os.setsid()
        leave_exit_to_parent()
        for number in (1, 2):
            os.dup2(output, number)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        os.chdir(folder)
        sys.argv, sys.path[0] = ["neusight", *ARGUMENTS], str(folder)
        code = neusight_main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def awaited(process: int) -> int | None:
    """Its exit code; None where it did not end."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def tried(
    place: Path, mode: str, moment_s: float, generator: random.Random, *, is_cold: bool
) -> str:
    """One run: what was wrong with it, empty where nothing was."""
    folder, temporary = place / "folder", place / "tmp"
    folder.mkdir(parents=True)
    temporary.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "notes.txt").write_text("precious")
    (folder / "log.csv").write_text("1,2\n")
    torch.save({"a": 1}, folder / "model.pt")
    before = standing(folder)
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONWARNINGS": "ignore"}
    if mode == "fallback":
        environment[FILES_VARIABLE] = "overlay"
    process = start(folder, environment, is_cold=is_cold)
    sent = []
    for wait_s in [moment_s, *([generator.uniform(0, 0.3)] if generator.random() < 0.3 else [])]:
        time.sleep(wait_s)
        number, is_group = generator.choice(SIGNALS), generator.random() < 0.5
        with suppress(ProcessLookupError):
            (os.killpg if is_group else os.kill)(process, number)
        sent.append(f"{number.name}{' (group)' if is_group else ''} after {wait_s:.3f} s")
    code = awaited(process)
    output = folder.with_suffix(".out").read_text(errors="replace")
    wrong = []
    if code not in EXPECTED:
        wrong.append(f"exit code {code}" if code is not None else "it did not end")
    wrong += [f"printed {word!r}" for word in FAULTS if word in output]
    if standing(folder) != before:
        wrong.append("the folder differs")
    wrong += [f"left {path.name} in the temporary folder" for path in temporary.glob("neusight-*")]
    shutil.rmtree(place, ignore_errors=True)
    if not wrong:
        return ""
    return (
        f"{mode}, {'cold' if is_cold else 'warm'}, {', '.join(sent)}: {'; '.join(wrong)}\n{output}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", action="append", choices=("view", "fallback"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator, faults, longest = random.Random(options.seed), 0, {True: 6.0, False: 3.0}
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="file-signals-", dir="/tmp") as folder:
        for number in range(options.runs):
            mode = generator.choice(options.mode or ["view", "fallback"])
            is_cold = number % COLD_EVERY == 0
            moment_s = generator.uniform(0, longest[is_cold])
            wrong = tried(Path(folder, str(number)), mode, moment_s, generator, is_cold=is_cold)
            counts[mode] += 1
            if wrong:
                faults += 1
                print(f"run {number}: {wrong}", flush=True)
    print(f"{options.runs} runs ({', '.join(f'{n} {mode}' for mode, n in counts.items())}): "
          f"{faults} with a fault")  # fmt: skip
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())

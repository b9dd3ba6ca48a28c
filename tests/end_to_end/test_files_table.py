"""Each cell of the guide's table of files, for the command with and without a view, and a block."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.integrations.program.guard.guarded_process import FILES_VARIABLE, why_no_view
from neusight.integrations.program.guard.landlock import is_available

#: Does one thing for each row, and prints what it reads back. Descriptor 8 is the real folder's.
SCRIPT = """
import contextlib, ctypes, os, subprocess
import numpy as np
import torch

def work():
    torch.ones(2, device="cuda")
    run = lambda line: subprocess.run(line, shell=True, stderr=subprocess.DEVNULL)
    open("python.txt", "a").write("+")
    torch.save({"a": 2}, "model.pt")
    np.save("array.npy", np.ones(2))
    run("echo + >> program.txt")
    libc = ctypes.CDLL(None)
    opened = libc.open(b"library.txt", os.O_WRONLY | os.O_APPEND)
    if opened >= 0:
        libc.write(opened, b"+", 1)
        libc.close(opened)
    os.chmod("mode_by_python.txt", 0o600)
    os.chmod("folder_by_python", 0o700)
    run("chmod 600 mode_by_program.txt; chmod 700 folder_by_program")
    open("new.txt", "w").write("new")
    is_there = libc.faccessat(8, b"new.txt", os.F_OK, 0) == 0
    os.write(9, b"+")
    print("seen", {
        "python.txt": "+" in open("python.txt").read(),
        "model.pt": torch.load("model.pt")["a"] == 2,
        "array.npy": np.load("array.npy").tolist() == [1, 1],
        "program.txt": "+" in open("program.txt").read(),
        "library.txt": "+" in open("library.txt").read(),
        "mode_by_python.txt": os.stat("mode_by_python.txt").st_mode & 0o777 == 0o600,
        "mode_by_program.txt": os.stat("mode_by_program.txt").st_mode & 0o777 == 0o600,
        "folder_by_python": os.stat("folder_by_python").st_mode & 0o777 == 0o700,
        "folder_by_program": os.stat("folder_by_program").st_mode & 0o777 == 0o700,
        "new.txt is really there": is_there,
    })
"""
IN_A_BLOCK = """
import neusight
with neusight.forecast_on("H100"):
    work()
"""
NAMES = (
    "python.txt", "model.pt", "array.npy", "program.txt", "library.txt", "mode_by_python.txt",
    "mode_by_program.txt", "descriptor.txt",
)  # fmt: skip
FOLDERS = ("folder_by_python", "folder_by_program")

#: What changes of what stood there.
CHANGED = {
    "view": set(),
    "fallback": set(),
    "block": {
        "program.txt", "library.txt", "mode_by_program.txt", "folder_by_program", "descriptor.txt",
    },
}  # fmt: skip
#: What the script does not see of what it did.
NOT_SEEN = {
    "view": {"new.txt is really there"},
    "fallback": set(),
    "block": set(),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["view", "fallback", "block"])
def test_it_is_as_the_guide_says(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "view" and why_no_view():
        pytest.skip(f"no view here: {why_no_view()}")
    if mode == "fallback":
        if not is_available():
            pytest.skip("this kernel has no Landlock")
        monkeypatch.setenv(FILES_VARIABLE, "overlay")
    for name in NAMES:
        (tmp_path / name).write_text("old")
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    call = IN_A_BLOCK if mode == "block" else "work()\n"
    (tmp_path / "script.py").write_text(SCRIPT + call)
    before = standing(tmp_path)
    command = "-m neusight run --quiet --gpu H100 script.py" if mode != "block" else "script.py"

    done = subprocess.run(
        ["bash", "-c", f"exec 8<. 9>>descriptor.txt; {sys.executable} -W ignore {command}"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("seen")]
    seen = ast.literal_eval(line.removeprefix("seen "))
    after = standing(tmp_path)
    assert not (tmp_path / "new.txt").exists()
    assert {name for name in before if after[name] != before[name]} == CHANGED[mode]
    assert {name for name, is_seen in seen.items() if not is_seen} == NOT_SEEN[mode]


def standing(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for name in (*NAMES, *FOLDERS):
        path = folder / name
        found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
    return found

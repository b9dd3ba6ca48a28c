"""Each cell of the guide's table of files, for the command with and without a view, and a block."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from guarded_files import guard_by, standing

#: Does one thing for each row, and prints what it reads back. Descriptor 8 is the real folder's.
SCRIPT = """
import contextlib, ctypes, os, subprocess
import numpy as np
import torch

libc = ctypes.CDLL(None)
handle = open("handle.txt", "a")

def run(line):
    return subprocess.run(line, shell=True, capture_output=True, text=True).stdout

def read_by_library(name):
    opened, data = libc.open(name, os.O_RDONLY), ctypes.create_string_buffer(9)
    libc.read(opened, data, 8)
    libc.close(opened)
    return data.value.decode()

def attribute(name):
    with contextlib.suppress(OSError):
        return os.getxattr(name, "user.a") == b"1"
    return False

def work():
    torch.ones(2, device="cuda")
    open("python.txt", "a").write("+")
    torch.save({"a": 2}, "model.pt")
    np.save("array.npy", np.ones(2))
    os.remove("removed_by_python.txt")
    run("echo + >> program.txt")
    run("rm removed_by_program.txt; echo > new_of_program.txt")
    opened = libc.open(b"library.txt", os.O_WRONLY | os.O_APPEND)
    if opened >= 0:
        libc.write(opened, b"+", 1)
        libc.close(opened)
    os.chmod("mode_by_python.txt", 0o600)
    os.chmod("folder_by_python", 0o700)
    os.utime("times_by_python.txt", (1, 1))
    os.utime("folder_by_python", (1, 1))
    run("chmod 600 mode_by_program.txt; chmod 700 folder_by_program; touch -d @1 folder_by_program")
    run("touch -d @1 times_by_program.txt")
    if os.geteuid() == 0:
        os.chown("owner_by_python.txt", 1234, 1234)
        run("chown 1234 owner_by_program.txt")
    with contextlib.suppress(OSError):
        os.setxattr("attribute_by_python.txt", "user.a", b"1")
    libc.setxattr(b"attribute_by_library.txt", b"user.a", b"1", 1, 0)
    open("new.txt", "w").write("new")
    is_there = libc.faccessat(8, b"new.txt", os.F_OK, 0) == 0
    os.write(9, b"+")
    handle.write("+")
    handle.flush()
    print("seen", {
        "python.txt": "+" in open("python.txt").read(),
        "python.txt read by a program": "+" in run("cat python.txt"),
        "python.txt read by a library": "+" in read_by_library(b"python.txt"),
        "model.pt": torch.load("model.pt")["a"] == 2,
        "array.npy": np.load("array.npy").tolist() == [1, 1],
        "program.txt": "+" in open("program.txt").read(),
        "program.txt read by a program": "+" in run("cat program.txt"),
        "library.txt": "+" in open("library.txt").read(),
        "library.txt read by a library": "+" in read_by_library(b"library.txt"),
        "removed_by_python.txt listed": "removed_by_python.txt" not in os.listdir(),
        "removed_by_python.txt listed by a program": "removed_by_python.txt" not in run("ls"),
        "removed_by_program.txt listed": "removed_by_program.txt" not in os.listdir(),
        "removed_by_program.txt listed by a program": "removed_by_program.txt" not in run("ls"),
        "mode_by_python.txt": os.stat("mode_by_python.txt").st_mode & 0o777 == 0o600,
        "mode_by_program.txt": os.stat("mode_by_program.txt").st_mode & 0o777 == 0o600,
        "folder_by_python": os.stat("folder_by_python").st_mode & 0o777 == 0o700
        and os.stat("folder_by_python").st_mtime == 1,
        "folder_by_program": os.stat("folder_by_program").st_mode & 0o777 == 0o700
        and os.stat("folder_by_program").st_mtime == 1,
        "times_by_python.txt": os.stat("times_by_python.txt").st_mtime == 1,
        "times_by_program.txt": os.stat("times_by_program.txt").st_mtime == 1,
        "owner_by_python.txt": os.stat("owner_by_python.txt").st_uid == 1234 or os.geteuid() != 0,
        "owner_by_program.txt": os.stat("owner_by_program.txt").st_uid == 1234 or os.geteuid() != 0,
        "attribute_by_python.txt": attribute("attribute_by_python.txt"),
        "attribute_by_library.txt": attribute("attribute_by_library.txt"),
        "new.txt is really there": is_there,
        "new.txt read by a program": run("cat new.txt") == "new",
    })
"""
IN_A_BLOCK = """
import neusight
with neusight.forecast_on("H100"):
    work()
"""
NAMES = (
    "python.txt", "model.pt", "array.npy", "program.txt", "library.txt", "removed_by_python.txt",
    "removed_by_program.txt", "mode_by_python.txt", "mode_by_program.txt", "times_by_python.txt",
    "times_by_program.txt", "owner_by_python.txt", "owner_by_program.txt",
    "attribute_by_python.txt", "attribute_by_library.txt", "descriptor.txt", "handle.txt",
)  # fmt: skip
ATTRIBUTES = {"attribute_by_python.txt", "attribute_by_library.txt"}
FOLDERS = ("folder_by_python", "folder_by_program")

#: What changes of what stood there, and what is left of what did not.
CHANGED: dict[str, set[str]] = {
    "view": set(),
    "fallback": set(),
    "block": {
        "program.txt", "library.txt", "removed_by_program.txt", "mode_by_program.txt",
        "times_by_program.txt", "folder_by_program", "attribute_by_library.txt", "descriptor.txt",
        "new_of_program.txt", *(["owner_by_program.txt"] if os.geteuid() == 0 else []),
    },
}  # fmt: skip
#: What the script does not see of what it did.
NOT_SEEN = {
    "view": {"new.txt is really there"},
    "fallback": ATTRIBUTES,
    "block": {
        "python.txt read by a program", "python.txt read by a library",
        "removed_by_python.txt listed by a program",
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["view", "fallback", "block"])
def test_it_is_as_the_guide_says(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode != "block":
        guard_by(mode, monkeypatch)
    for name in NAMES:
        (tmp_path / name).write_text("old")
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    call = IN_A_BLOCK if mode == "block" else "work()\n"
    (tmp_path / "script.py").write_text(SCRIPT + call)
    unsupported = set() if has_attributes(tmp_path / "handle.txt") else ATTRIBUTES
    before = standing(tmp_path, with_folder_times=True)
    command = "-m neusight run --gpu H100 script.py" if mode != "block" else "script.py"

    done = subprocess.run(
        ["bash", "-c", f"exec 8<. 9>>descriptor.txt; {sys.executable} -W ignore {command}"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("seen")]
    seen = ast.literal_eval(line.removeprefix("seen "))
    after = standing(tmp_path, with_folder_times=True)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed - {"."} == CHANGED[mode] - unsupported
    not_seen = {name for name, is_seen in seen.items() if not is_seen}
    assert not_seen == NOT_SEEN[mode] | unsupported
    if mode == "fallback":
        assert "refused, to keep your files as they are: changes by the script" in done.stdout


def has_attributes(path: Path) -> bool:
    """Whether the file system keeps extended attributes of users."""
    try:
        os.setxattr(path, "user.a", b"")
    except OSError:
        return False
    os.removexattr(path, "user.a")
    return True

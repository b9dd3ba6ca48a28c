"""A process that restricts itself writes only where it may; everything else is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.integrations.program.guard import landlock, system_calls
from neusight.integrations.program.guard.landlock import (
    is_available,
    landlock_abi,
    restrict_writes,
    why_no_landlock,
)

needs_landlock = pytest.mark.skipif(
    not is_available(), reason="this kernel has no Landlock of ABI 2 or later"
)

#: Tries one thing after the other in a process of its own, and shows what came of each.
TRY_ALL = """
import json, os, subprocess, sys
from pathlib import Path
from neusight.integrations.program.guard.landlock import restrict_writes
home, free = map(Path, sys.argv[1:])
opened = open(home / "open.txt", "a")
restrict_writes([str(free), "/dev", str(home / "one.txt"), str(home / "not there")])

ways = {
    "write": lambda: (home / "a.txt").write_text("b"),
    "create": lambda: (home / "new.txt").write_text("b"),
    "remove": lambda: (home / "a.txt").unlink(),
    "remove folder": lambda: (home / "folder").rmdir(),
    "rename": lambda: (home / "a.txt").rename(home / "b.txt"),
    "move in": lambda: (free / "mine.txt").rename(home / "a.txt"),
    "move out": lambda: (home / "a.txt").rename(free / "a.txt"),
    "link": lambda: (home / "link").symlink_to("a.txt"),
    "truncate": lambda: os.truncate(home / "a.txt", 0),
    "rm": lambda: subprocess.run(["rm", home / "a.txt"], check=True, stderr=subprocess.PIPE),
    "free write": lambda: (free / "x.txt").write_text("x"),
    "free move": lambda: [(free / "sub").mkdir(), (free / "x.txt").rename(free / "sub" / "x.txt")],
    "free remove": lambda: (free / "sub" / "x.txt").unlink(),
    "one file": lambda: (home / "one.txt").write_text("x"),
    "device": lambda: Path("/dev/null").write_text("x"),
    "open before": lambda: (opened.write("more"), opened.close()),
    "read": lambda: (home / "a.txt").read_text() == "a" or 1 / 0,
}
said = {}
for name, way in ways.items():
    try:
        way()
        said[name] = "done"
    except Exception as error:
        said[name] = type(error).__name__
print(json.dumps(said))
"""

STOPPED = {
    "write", "create", "remove", "remove folder", "rename", "move in", "move out", "link", "rm",
    *(["truncate"] if landlock_abi() >= 3 else []),
}  # fmt: skip


@needs_landlock
def test_whatever_writes_elsewhere_is_stopped_and_reading_works(tmp_path: Path) -> None:
    home, free = tmp_path / "home", tmp_path / "free"
    (home / "folder").mkdir(parents=True)
    free.mkdir()
    (free / "mine.txt").write_text("mine")
    for name in ("a.txt", "one.txt", "open.txt"):
        (home / name).write_text("a")
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}

    done = subprocess.run(
        [sys.executable, "-c", TRY_ALL, str(home), str(free)], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    stated = json.loads(done.stdout)
    assert {name for name, came in stated.items() if came != "done"} == STOPPED
    assert {stated[name] for name in STOPPED} <= {
        "PermissionError", "OSError", "CalledProcessError"
    }  # fmt: skip
    after = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]} - {"a.txt"}
    assert changed == {"one.txt", "open.txt"}


@pytest.mark.parametrize(
    ("abi", "words"), [(0, "this kernel has no Landlock"), (1, "its Landlock is ABI 1"), (7, "")]
)
def test_a_kernel_without_it_is_distinguished(
    abi: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "landlock_abi", lambda: abi)

    assert why_no_landlock().startswith(words) and is_available() == (words == "")


def test_a_kernel_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(system_calls._NUMBERS, "landlock_create_ruleset", (100_000, 100_000))

    with pytest.raises(OSError, match="not implemented"):
        restrict_writes(["/tmp"])

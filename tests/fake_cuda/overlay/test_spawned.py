"""Processes that a script starts share what became of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from warm_python import run_python

WORKER = """
import os, shutil
def work():
    with open('notes.txt', 'a') as file:
        file.write(' child')
    shutil.rmtree('old')
    with open('new.txt', 'w') as file:
        file.write('new')
"""

SCRIPT = """
import multiprocessing, os, sys, tempfile
import neusight, torch
import worker

if __name__ == "__main__":
    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        with open("notes.txt", "a") as file:
            file.write(" parent")
        process = multiprocessing.get_context(sys.argv[1]).Process(target=worker.work)
        process.start()
        process.join()
        there = os.path.exists("old"), os.path.exists("new.txt")
        print(process.exitcode, open("notes.txt").read(), *there)
"""


@pytest.mark.parametrize(
    "way", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver"]
)
def test_a_child_sees_and_changes_the_same_store(way: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").write_text("kept")

    done = run_python(str(tmp_path / "script.py"), way, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 notes parent child False True\n"
    assert (tmp_path / "notes.txt").read_text() == "notes"
    assert (tmp_path / "old" / "kept").read_text() == "kept"
    assert not (tmp_path / "new.txt").exists()

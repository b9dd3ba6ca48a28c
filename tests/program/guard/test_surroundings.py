"""Odd places and full disks: a guarded process works there, or says in words why it does not."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guarded_files import GUARDS, guard_by, in_fork, work_in

from neusight.integrations.program.guard.guarded_process import in_guarded_process
from warm_python import run_python

may_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
_NEW_MOUNTS = 0x00020000


@pytest.fixture(params=GUARDS, autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What keeps the files as they are."""
    guard_by(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, with another folder beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "theirs.txt").write_text("theirs")
    return work_in(tmp_path, monkeypatch)


def shell(line: str) -> Callable[[Any], str]:
    """Work that returns what a line of shell prints, its errors as well."""
    return lambda store: (
        subprocess.run(
            ["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout
    )


def guarded(line: str) -> Any:
    return in_guarded_process(shell(line), ["script.py"])


def with_mounts(lines: str, action: Callable[[], Any]) -> Any:
    """What an action returns in a process where these lines of shell mounted what nobody else
    sees."""

    def run() -> object:
        assert ctypes.CDLL(None).unshare(_NEW_MOUNTS) == 0
        subprocess.run(f"set -e; mount --make-rprivate /; {lines}", shell=True, check=True)
        os.chdir(Path.cwd())  # into what is mounted there now
        return action()

    return in_fork(run)


@may_mount
def test_a_full_disk_is_the_scripts_to_hear_of_and_nothing_is_left(home: Path, mode: str) -> None:
    (home / "large.bin").write_bytes(bytes(300_000))

    def work() -> Any:
        ended = guarded("echo new >> large.bin || cat large.bin | wc -c")
        return ended.answer, ended.refused, [path.name for path in (home.parent / "tmp").iterdir()]

    answer, refused, left = with_mounts(f"mount -t tmpfs -o size=128k t {home.parent}/tmp", work)

    assert "No space left on device" in answer and answer.endswith("300000\n")
    if mode == "fallback":
        assert "changes by bash (large.bin)" in refused
    assert left == []
    assert (home / "large.bin").read_bytes() == bytes(300_000)


@may_mount
def test_an_answer_for_which_the_disk_has_no_room_is_said_so(home: Path) -> None:
    def work() -> Any:
        ended = in_guarded_process(lambda store: bytes(300_000), ["script.py"])
        return ended.failure, int(ended.exit_code)

    failed = with_mounts(f"mount -t tmpfs -o size=128k t {home.parent}/tmp", work)

    text = "what was recorded could not be written to the temporary folder: No space left on device"
    assert failed == (text, 1)


@may_mount
def test_a_read_only_working_directory_can_be_read(home: Path) -> None:
    lines = f"mount --bind {home} {home}; mount -o remount,bind,ro {home}"

    answer = with_mounts(lines, lambda: guarded("cat mine.txt; echo x > new").answer)

    assert answer == "minebash: line 1: new: Read-only file system\n"


@may_mount
def test_what_is_mounted_below_is_kept_as_it_is_too(home: Path) -> None:
    (home / "data").mkdir()
    lines = f"mount --bind {home.parent}/outside {home}/data"

    def work() -> Any:
        answer = guarded("echo new >> data/theirs.txt; cat data/theirs.txt").answer
        return answer, Path("data/theirs.txt").read_text()

    assert with_mounts(lines, work) == ("theirsnew\n", "theirs")


def test_links_out_of_and_into_the_folder_lead_to_what_was_written(home: Path) -> None:
    outside = home.parent / "outside"
    (home / "out").symlink_to(outside)
    (home / "file").symlink_to(outside / "theirs.txt")
    (outside / "in").symlink_to(home)

    answer = guarded(
        "echo 1 >> file; echo 2 >> out/theirs.txt; cat ../outside/theirs.txt; echo 3 >> "
        "../outside/in/mine.txt; cat mine.txt; echo 4 > out/new; cat ../outside/new; rm file; ls"
    ).answer

    assert answer == "theirs1\n2\nmine3\n4\nmine.txt\nout\n"
    assert (home / "mine.txt").read_text() == "mine"
    assert (outside / "theirs.txt").read_text() == "theirs"
    assert (home / "file").is_symlink() and not (outside / "new").exists()


def test_two_runs_in_one_folder_at_once_do_not_see_each_other(home: Path) -> None:
    line = "echo {0} >> mine.txt; echo {0} > new-{0}; echo ready >&2; read; cat mine.txt; ls new-*"
    code = (
        "import subprocess, sys\n"
        "from neusight.integrations.program.guard.guarded_process import in_guarded_process\n"
        "line = ['bash', '-c', sys.argv[1]]\n"
        "work = lambda store: subprocess.check_output(line, text=True)\n"
        "print(in_guarded_process(work, ['s.py']).answer, end='')\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, line.format(n)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for n in range(2)
    ]  # fmt: skip
    for run in runs:
        assert run.stderr is not None
        assert run.stderr.readline() == "ready\n"

    outputs = [run.communicate("\n")[0] for run in runs]

    assert [output.split()[0] for output in outputs] == ["mine0", "mine1"]
    assert [output.split()[1:2] for output in outputs] == [["new-0"], ["new-1"]]
    assert (home / "mine.txt").read_text() == "mine"
    assert [path.name for path in home.iterdir()] == ["mine.txt"]


def test_a_huge_file_is_neither_copied_by_opening_nor_changed(home: Path, mode: str) -> None:
    with (home / "huge.bin").open("wb") as file:
        file.truncate(200 * 2**30)  # takes no room
    before = (home / "huge.bin").stat()

    ended = guarded("head -c 3 huge.bin | wc -c; mv huge.bin moved.bin; stat -c %s moved.bin")

    assert ended.answer == f"3\n{200 * 2**30}\n"
    after = (home / "huge.bin").stat()
    assert (after.st_mtime_ns, after.st_blocks) == (before.st_mtime_ns, before.st_blocks)


@pytest.mark.parametrize("variables", [{"HOME": "/nonexistent"}, {"TMPDIR": "/nonexistent"}])
def test_a_command_works_without_home_or_terminal(variables: dict[str, str], home: Path) -> None:
    (home / "train.py").write_text(
        "import torch\ntorch.ones(3, device='cuda') + 1\nopen('mine.txt', 'a').write('new')\n"
        "print(open('mine.txt').read())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}

    command = (
        "import os, sys\nos.setsid()\nfrom neusight.integrations.cli.main import main\n"
        "sys.exit(main(['run', '--gpu', 'H100', 'train.py']))\n"
    )

    done = run_python("-c", command, env={**environment, **variables})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("minenew\n")
    assert (home / "mine.txt").read_text() == "mine"


@may_mount
@pytest.mark.skipif(
    sys.prefix.startswith(("/tmp/", "/var/tmp/")), reason="Python itself is in a temporary folder"
)
def test_without_any_temporary_folder_it_runs_or_says_what_to_do(home: Path) -> None:
    (home / "train.py").write_text("import torch\ntorch.ones(3, device='cuda')\n")
    folders = "/tmp /var/tmp /usr/tmp"
    # The folder itself lies below /tmp, which is hidden.
    lines = f"mount --bind {home} /mnt; mount -o remount,bind,ro /mnt; cd /mnt"

    def work() -> Any:
        command = [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "train.py"]
        hidden = f"for f in {folders}; do [ -d $f ] && mount -t tmpfs -o ro t $f; done; "
        line = hidden + 'exec "$@"'
        environment = {**os.environ, "TMPDIR": "/nonexistent"}
        done = subprocess.run(
            ["bash", "-c", line, "bash", *command], capture_output=True, text=True,
            env=environment, cwd="/mnt",
        )  # fmt: skip
        return done.returncode, done.stderr

    code, text = with_mounts(lines, work)

    assert "Traceback" not in text, text
    assert code == 0 or "TMPDIR" in text  # /dev/shm serves where there is one

"""What a supervised program does to files is done for it, by the rules of the overlay."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guarded_files import NOBODY, become_nobody, guard_by, in_fork, standing

from neusight.integrations.program.guard import guarded_process, supervisor
from neusight.integrations.program.guard.guarded_process import (
    FILES_VARIABLE,
    files_text,
    in_guarded_process,
)
from neusight.integrations.program.guard.supervisor import why_unsupervised


@pytest.fixture(autouse=True)
def fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    guard_by("fallback", monkeypatch)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What a line of shell prints, in a supervised process, in a folder with three files."""
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    for name in ("a", "b", "folder/c"):
        (home / name).write_text(name)
    monkeypatch.chdir(home)
    before = standing(home)

    def run(line: str) -> str:
        def work(store: Any) -> str:
            done = subprocess.run(
                ["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            return done.stdout

        answer = in_guarded_process(work, ["script.py"]).answer
        assert standing(home) == before
        return str(answer)

    return run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo x >> a; cat a", "ax\n"),
        ("echo x > a; stat -c %s a", "2\n"),
        ("rm a; cat a; echo $?", "cat: a: No such file or directory\n1\n"),
        ("rm a; [ -e a ]; echo $?", "1\n"),
        ("mv a z; cat z; cat a 2>&1 | wc -l", "a1\n"),
        ("mv a b; cat b", "a"),
        ("mv folder other; cat other/c", "folder/c"),
        ("rm -r folder; mkdir folder; echo n > folder/n; cat folder/*", "n\n"),
        ("chmod 600 a; stat -c %a a", "600\n"),
        ("touch -d 2001-01-01 a; stat -c %Y a", "978307200\n"),
        ("truncate -s 1 folder/c; cat folder/c", "f"),
        ("ln a second; echo x >> second; cat second", "ax\n"),
        ("ln -s a l; cat l; readlink l", "aa\n"),
        ("ln -sf a l; tar cf t l; rm l; tar xf t; readlink l", "a\n"),
        ("rm -r folder; ln -s a folder; tar cf t folder; rm folder; tar xf t; cat folder", "a"),
        ("rm folder/c; rmdir folder; echo x > folder; find . -type f | sort",
         "./a\n./b\n./folder\n"),
        ("ln -s folder l; ln -s $PWD/folder m; stat -c %F l m; cat l/c m/c",
         "symbolic link\nsymbolic link\nfolder/cfolder/c"),
        ("rm folder/c; ln -s folder l; stat -c %F l; ls -d l; ls l; ls folder/..",
         "symbolic link\nl\na\nb\nfolder\nl\n"),
        ("rm -r folder; mkdir sub; ln -s sub folder; stat -c %F folder; ls -ld folder | cut -c1",
         "symbolic link\nl\n"),
        ("rm a; cp -r . $TMPDIR/copy; cat $TMPDIR/copy/b $TMPDIR/copy/folder/c", "bfolder/c"),
        ("rm a; find . -type f -size -12c | sort", "./b\n./folder/c\n"),
        ("rm folder/c; python3 -I -c 'import shutil; shutil.rmtree(\"folder\")'; ls", "a\nb\n"),
        ("rm a; python3 -I -c 'import shutil; shutil.rmtree(\"folder\")'; ls", "b\n"),
        ("rm a; python3 -I -c 'import os; os.chmod(\"b\", 0o600, dir_fd=os.open(\".\", 0))'; "
         "stat -c %a b", "600\n"),
        ("mkfifo p; (sleep 0.2; cat p) & echo x > p; wait", "x\n"),
        ("mkdir -p x/y; echo 1 > x/y/z; mv x w; cat w/y/z; rm -r w; [ -e w ]; echo $?", "1\n1\n"),
        ("(umask 077; echo 1 > new); stat -c %a new", "600\n"),
        ("cd folder; echo x > ../a; cat ../a; echo y > c; cat c", "x\ny\n"),
        ("exec 5<folder; cd /proc/self/fd/5; echo x > new; cat new", "x\n"),
        ("set -C; echo x > a; echo $?", "bash: line 1: a: cannot overwrite existing file\n1\n"),
        ("echo x > folder; echo $?", "bash: line 1: folder: Is a directory\n1\n"),
        ("echo x > none/new; echo $?", "bash: line 1: none/new: No such file or directory\n1\n"),
        ("echo x > /dev/null; echo x | tee /dev/stderr", "x\nx\n"),
        ("sed -i s/a/z/ a; cat a", "z"),
        ("tar cf t folder; rm -r folder; tar xf t; cat folder/c", "folder/c"),
        ("rm -r folder; mkdir folder; chmod 700 folder; stat -c %a folder", "700\n"),
        ("cp -p a folder; touch -r b folder/a; cat folder/a", "a"),
        ("exec 5<a; touch -d @5 /proc/self/fd/5; echo $?", "0\n"),
        ("exec 5<a; chmod 600 /proc/self/fd/5; stat -c %a a", "600\n"),
        ("l=$TMPDIR/l; ln -s $PWD/a $l; chmod 600 $l; echo x >> $l; stat -c %a-%s a", "600-3\n"),
        ("chmod 600 $TMPDIR/../../../$PWD/a; echo x >> /dev/../$PWD/a; cat a", "ax\n"),
        ("for n in 1 2 3 4 5 6; do echo $n > n$n & done; wait; cat n?", "1\n2\n3\n4\n5\n6\n"),
    ],
)  # fmt: skip
def test_programs_read_back_what_they_did_and_nothing_changes(
    line: str, expected: str, run: Callable[[str], str]
) -> None:
    assert run(line) == expected


def test_the_number_of_a_call_and_its_result_are_those_of_the_kernel(
    run: Callable[[str], str],
) -> None:
    source = (
        "import os; d = os.open('a', os.O_RDWR | os.O_APPEND); os.write(d, b'x'); "
        "print(os.get_inheritable(d), os.fstat(d).st_size, os.stat('a').st_size, os.access('a', 7))"
    )

    assert run(f'python3 -I -c "{source}"') == "False 2 2 False\n"


def test_where_the_kernel_refuses_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(supervisor, "install_filter", refuse)

    assert why_unsupervised() == "Device or resource busy"
    assert files_text("overlay", is_guarded=True).startswith(
        "guarded by the overlay alone: the kernel lets no process supervise another: Device or"
    )


def test_a_program_that_became_another_user_is_left_to_the_kernel(
    run: Callable[[str], str],
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")
    source = "import os; os.setuid(65534); open('new', 'w')"

    assert "Permission denied" in run(f'python3 -I -c "{source}"')


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rm a; ls", "b folder"),
        ("mv a z; ls; rm -r folder; find . -type f; find . -type d", "b folder z ./b ./z ."),
        ("rm a; mkdir -p x/y; touch n; ls -F; rm -r x n; ls", "b folder/ n x/ b folder"),
        ("rm folder/c; rmdir folder; mkdir folder; ls folder; ls -d folder", "folder"),
        ("rm b; ln -s a l; ls; rm a; echo a > a; cat l; find . -type l", "a folder l a ./l"),
        ("mv folder other; ls other; cd other; cat c; echo x > d; ls", "c folder/cc d"),
        ("chmod 711 folder; stat -c %a folder; touch -d @9 folder; stat -c %Y folder", "711 9"),
        ("mkdir -p q/r/s/t/u/v q/r/s/t/u/w; rm -r q folder; ls", "a b"),
        ("ln -sf b l; ln -sf a l; readlink l; readlink a; echo $?", "a 1"),
        ("exec 5<a; rm a; chmod 600 a /proc/self/fd/5 2>/dev/null; echo $?", "1"),
    ],
)
def test_every_program_lists_and_names_what_is_visible(
    line: str, expected: str, run: Callable[[str], str]
) -> None:
    assert run(line).split() == expected.split()


def test_deep_folders_of_the_users_are_removed_from_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("1", "2"):
        (tmp_path / "a/b/c/d/e/f/g/h" / name / "i").mkdir(parents=True)
        (tmp_path / "a/b/c" / name).mkdir()
        (tmp_path / "a/b/c/d/e/f/g/h" / name / "file").touch()

    def work(store: Any) -> bytes:
        line = "rm a/b/c/d/e/f/g/h/1/file; rm -r a; ls -R; git init -q a; rm -r a; ls"
        return subprocess.check_output(line, shell=True, stderr=subprocess.STDOUT)

    assert in_guarded_process(work, ["script.py"]).answer == b".:\n"
    assert len(list(tmp_path.rglob("*"))) == 16


def test_the_c_library_gets_the_errors_it_would_get(run: Callable[[str], str]) -> None:
    source = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); "
        "print(l.rmdir(b'folder'), ctypes.get_errno(), l.unlink(b'none'), ctypes.get_errno(), "
        "l.mkdir(b'a', 511), ctypes.get_errno(), l.open(None, 1), ctypes.get_errno(), "
        "l.syscall(257, ctypes.c_long(2**64 - 100), b'b', 0) > 0)"
    )
    if os.uname().machine != "x86_64":
        source = source.replace("257", "56")  # the number of openat

    assert run(f'python3 -I -c "{source}"') == "-1 39 -1 2 -1 17 -1 14 True\n"


def test_an_ordinary_user_is_supervised_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests are an ordinary user's already")
    guarded_process._load()  # what nobody may perhaps not read
    monkeypatch.setattr(guarded_process, "_load", lambda: None)
    place = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.chdir(place)
    monkeypatch.setenv("TMPDIR", place)
    monkeypatch.setenv("HOME", place)
    monkeypatch.setattr(tempfile, "tempdir", None)
    Path("a").write_text("a")
    for path in (place, "a"):
        os.chown(path, NOBODY, NOBODY)
    line = (
        "echo x >> a; echo n > new; cat a new; chmod 600 a; stat -c %a a; mkdir -p shut/in; "
        "echo s > shut/in/s; chmod 0 shut/in shut; cat shut/in/s; ls shut; echo $?"
    )

    def work() -> Any:
        become_nobody()
        run = ["sh", "-c", line]
        return in_guarded_process(lambda store: subprocess.check_output(run), ["script.py"]).answer

    answer = in_fork(work)

    assert answer == b"ax\nn\n600\n2\n"
    assert [path.name for path in Path(place).iterdir()] == ["a"]
    assert Path("a").read_text() == "a" and Path("a").stat().st_mode & 0o777 == 0o644
    shutil.rmtree(place)


#: What Docker's default profile refuses without CAP_SYS_ADMIN and CAP_SYS_PTRACE (moby,
#: profiles/seccomp/default.json), by numbers of x86-64: mounts, namespaces, descriptors of others.
REFUSED_BY_DOCKER = (
    155, 165, 166, 248, 249, 250, 272, 298, 304, 308, 321, 323, 425, 426, 427, 428, 429, 430, 431,
    432, 433, 438,
)  # fmt: skip


def enter_docker() -> None:
    """From now on this process has Docker's default capabilities and system calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
    mask = sum(1 << number for number in kept) if os.geteuid() == 0 else 0
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)) == 0
    lines = [(0x20, 0, 0, 0)]
    lines += [(0x15, len(REFUSED_BY_DOCKER) - n, 0, k) for n, k in enumerate(REFUSED_BY_DOCKER)]
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | 1)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    head = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(program))
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.syscall(317, 1, 0, ctypes.create_string_buffer(head)) == 0


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_in_a_container_with_the_default_profile_the_fallback_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FILES_VARIABLE)
    Path("a").write_text("a")

    def work() -> Any:
        enter_docker()
        line = ["sh", "-c", "echo x >> a; cat a"]
        ended = in_guarded_process(lambda store: subprocess.check_output(line), ["script.py"])
        return ended.has_view, ended.answer, files_text("overlay", is_guarded=True)

    has_view, answer, reported = in_fork(work)

    assert (has_view, answer) == (False, b"ax\n")
    assert reported.startswith("guarded by the overlay, and by the kernel behind it (Landlock")
    assert reported.endswith("no copy-on-write view: unshare: Operation not permitted")
    assert Path("a").read_text() == "a"

"""In a view of its own a process changes what it sees, and nothing that stands there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from guarded_files import NOBODY, become_nobody, in_fork, standing

from neusight.fake_cuda.store.changes import REMOVED, Change, keep, summary_of
from neusight.fake_cuda.store.leftovers import remove_tree
from neusight.integrations.program.guard.guarded_process import why_no_view
from neusight.integrations.program.guard.layers import changes_in
from neusight.integrations.program.guard.view import enter_view

pytestmark = pytest.mark.skipif(why_no_view() != "", reason=f"no view here: {why_no_view()}")


@pytest.fixture(params=["as this user", "as an ordinary one"])
def user(request: pytest.FixtureRequest) -> int:
    """Who enters the view."""
    if request.param == "as this user":
        return os.geteuid()
    if os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    return NOBODY


@pytest.fixture
def place(user: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's with a working directory and a store in it, that all may enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    here = folder / "here"
    for path in (here, here / "dir", here / "sub", here / "empty", folder / "store"):
        path.mkdir(parents=True)
    contents = {
        "a.txt": "a", "old.txt": "old", "gone.txt": "gone", "dir/d": "d", "sub/s": "s",
        "shut.txt": "shut", "colon:comma,.txt": "o",
    }  # fmt: skip
    for name, text in contents.items():
        (here / name).write_text(text)
    (here / "shut.txt").chmod(0)
    (here / "link").symlink_to("a.txt")
    with sqlite3.connect(here / "runs.db") as connection:
        connection.execute("create table runs (id)")
    connection.close()
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, user, user)
    monkeypatch.chdir(here)
    yield folder
    os.chdir("/")
    remove_tree(str(folder))


def in_view(work: Callable[[], object], place: Path, user: int, *kept: str) -> Any:
    """What `work` returns, or the error that it raises in words, in a view."""

    def run() -> object:
        close_others(place)
        if user != os.geteuid():
            become_nobody()
        try:
            enter_view(f"{place}/store", kept)
        except OSError as error:
            return str(error)
        return work()

    return in_fork(run)


def close_others(place: Path) -> None:
    """The log of a test runner, for one, is open too, and would be written in the view."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and path.startswith("/") and not path.startswith(str(place)):
                os.close(int(name))


def shell(line: str) -> str:
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


MANY = """
echo more >> a.txt; cp a.txt b.txt; chmod 600 old.txt; touch -d 2001-01-01 old.txt; rm gone.txt
mv dir dir2; echo x >> dir2/d; rm -r sub; mkdir sub; echo n > sub/n; mkfifo pipe; ln a.txt second
chmod 700 empty; echo c >> 'colon:comma,.txt'; mkdir locked; echo l > locked/l; chmod 0 locked
echo z >> link
"""


def test_all_that_programs_do_is_seen_inside_and_changes_nothing(place: Path, user: int) -> None:
    here = place / "here"
    before = standing(here, with_folder_times=True)

    def work() -> Any:
        assert shell(MANY) == ""
        connection = sqlite3.connect("runs.db")
        connection.execute("insert into runs values (1)")
        connection.commit()
        os.setxattr("a.txt", "user.k", b"v")
        return (
            sorted(os.listdir()), Path("a.txt").read_text(), os.getxattr("a.txt", "user.k"),
            oct(os.stat("old.txt").st_mode), os.stat("old.txt").st_mtime, os.listdir("sub"),
            Path("dir2/d").read_text(), connection.execute("select * from runs").fetchall(),
            os.geteuid() == user, os.getcwd() == str(here),
        )  # fmt: skip

    seen = in_view(work, place, user)

    assert seen == (
        sorted(["a.txt", "b.txt", "colon:comma,.txt", "dir2", "empty", "link", "locked", "old.txt",
                "pipe", "runs.db", "second", "shut.txt", "sub"]),
        "amore\nz\n", b"v", "0o100600", 978307200.0, ["n"], "dx\n", [(1,)], True, True,
    )  # fmt: skip
    assert standing(here, with_folder_times=True) == before


def test_what_was_written_is_listed_and_kept(place: Path, user: int) -> None:
    here, kept = place / "here", place / "kept"
    kept.mkdir()

    in_view(lambda: shell(MANY), place, user)

    store = str(place / "store")
    changes = {one.path.removeprefix(f"{here}/"): one for one in changes_in(store)}
    assert all(isinstance(one, Change) for one in changes.values())
    assert {name for name, one in changes.items() if one.is_removed} == {"dir", "gone.txt", "sub/s"}
    assert {name for name, one in changes.items() if not one.is_new and not one.is_removed} == {
        "a.txt", "colon:comma,.txt", "old.txt",
    }  # fmt: skip
    line = summary_of(changes_in(store))
    assert "over your files (first: a.txt)" in line
    assert "new and is removed at the end (first: b.txt)" in line
    assert "what it removed still stands there (first: dir)" in line
    assert keep(changes_in(store), str(kept), store=store) == []
    found = {str(path.relative_to(kept)): path.read_text()
             for path in kept.rglob("*") if path.is_file()}  # fmt: skip
    assert found == {
        "a.txt": "amore\nz\n", "b.txt": "amore\n", "colon:comma,.txt": "oc\n", "old.txt": "old",
        "dir2/d": "dx\n", "second": "amore\nz\n", "sub/n": "n\n", "locked/l": "l\n",
        REMOVED: "dir\ngone.txt\nsub/s\n",
    }  # fmt: skip
    assert not any(os.listxattr(path) for path in kept.rglob("*") if path.is_file())


def test_the_files_modes_hold_as_ever(place: Path, user: int) -> None:
    def work() -> Any:
        return [os.access(path, os.W_OK) for path in ("a.txt", "shut.txt", "/etc", "/")]

    is_root = user == 0

    assert in_view(work, place, user) == [True, is_root, is_root, is_root]


def test_folders_that_are_kept_are_real(place: Path, user: int) -> None:
    cache = place / "here" / "empty"

    in_view(lambda: (cache / "model").write_text("x"), place, user, str(cache))

    assert (cache / "model").read_text() == "x"
    assert summary_of(changes_in(str(place / "store"))) == ""


def test_a_descriptor_that_was_open_before_writes_into_the_view(place: Path, user: int) -> None:
    with Path("a.txt").open("a") as file:
        file.write("1")
        file.flush()

        def work() -> str:
            file.write("2")
            file.flush()
            return Path("a.txt").read_text()

        seen = in_view(work, place, user)

    assert seen == "a12"
    assert Path("a.txt").read_text() == "a1"


def test_where_the_working_directory_cannot_be_covered_there_is_no_view(user: int) -> None:
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    shutil.chown(place, user, user)
    (place / "store").mkdir()
    os.chown(place / "store", user, user)
    before = os.getcwd()
    try:
        os.chdir(place)
        seen = in_view(lambda: None, place, user)
    finally:
        os.chdir(before)
        remove_tree(str(place))

    assert seen == f"[Errno 22] {place} is the machine's own"


def test_a_folder_of_a_group_that_is_not_the_users_own_is_refused(place: Path, user: int) -> None:
    if user == os.geteuid():
        pytest.skip("a namespace of users maps one group")
    os.chown(place / "here", user, 0)

    seen = in_view(lambda: None, place, user)

    assert "here cannot be covered: its owner or group is another" in seen


def test_what_stood_there_keeps_its_mode_when_changes_are_listed(place: Path, user: int) -> None:
    here = place / "here"
    (here / "to_dir").symlink_to("dir")
    before = standing(here, with_folder_times=True)
    lines = "rm a.txt link to_dir; mkdir a.txt link to_dir; echo n > a.txt/n"
    assert in_view(lambda: shell(lines), place, user) == ""

    changes = set(changes_in(str(place / "store")))

    paths = {os.path.relpath(one.path, here) for one in changes}
    assert paths - {"a.txt", "link", "to_dir"} == {"a.txt/n"}
    assert standing(here, with_folder_times=True) == before


def test_nothing_of_a_large_folder_is_copied(place: Path, user: int) -> None:
    for number in range(2000):
        (place / "here" / f"file-{number}").touch()

    in_view(lambda: Path("new.txt").write_text("x"), place, user)

    uppers = (place / "store" / "layers").glob("*/upper")
    files = [path.name for upper in uppers for path in upper.rglob("*") if path.is_file()]
    assert files == ["new.txt"]

"""The overlay behaves as the file system would, and changes nothing of what was there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guarded_files import standing
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.store.store import Store

PATHS = [
    "a",
    "b",
    "link",
    "hard",
    "d",
    "d/x",
    "d/y",
    "d/e",
    "d/e/z",
    "d/same",
    "n",
    "n/m",
    "n/m/o",
    "to_d/x",
]

path = st.sampled_from(PATHS)
step = st.one_of(
    st.tuples(st.just("write"), path, st.sampled_from(["w", "a", "x", "r+", "w+", "a+"])),
    st.tuples(st.sampled_from(["remove", "rmdir", "mkdir", "rmtree", "makedirs", "truncate",
                               "touch", "chmod", "chdir_and_write", "read"]), path),
    st.tuples(st.sampled_from(["rename", "replace", "copyfile", "move", "copytree"]), path, path),
    st.tuples(st.just("symlink"), st.sampled_from(["a", "d", "../a", "nowhere"]), path),
    st.tuples(st.just("link"), path, path),
)  # fmt: skip


def furnish(folder: Path) -> None:
    """What the user has: files, a hard link, links to a file and a folder, folders in folders."""
    (folder / "d" / "e").mkdir(parents=True)
    for name in ("a", "b", "d/x", "d/e/z"):
        (folder / name).write_text(f"the user's {name}")
        os.utime(folder / name, ns=(10**18, 10**18))
    os.link(folder / "a", folder / "hard")
    os.link(folder / "d/e/z", folder / "d/same")
    (folder / "link").symlink_to("b")
    (folder / "to_d").symlink_to("d")


def write(name: str, mode: str) -> None:
    with open(name, mode) as file:
        file.write("+")


def chdir_and_write(name: str) -> None:
    before = os.getcwd()
    os.chdir(name)
    try:
        write("inside", "a")
    finally:
        os.chdir(before)


def scan(name: str) -> str:
    return repr(
        sorted(
            (entry.name, repr(entry), os.fspath(entry), entry.is_file(), entry.is_dir(),
             entry.is_symlink(), entry.is_file(follow_symlinks=False),
             entry.inode() == os.lstat(entry).st_ino)
            for entry in os.scandir(name)
        )
    )  # fmt: skip


def read_by_an_opener(name: str) -> str:
    with open(name, *("r", -1, None, None, None, True, os.open)) as file:
        return file.read()


# Functions of `os` are asked for by name, as scripts do.
STEPS: dict[str, Callable[..., Any]] = {
    "write": write,
    "read": lambda name: Path(name).read_text(),
    "read_by_an_opener": read_by_an_opener,
    "scan": scan,
    "access": lambda name: repr([os.access(name, mode) for mode in (os.F_OK, os.W_OK, os.X_OK)]),
    "touch": lambda name: Path(name).touch(),
    "remove": lambda name: os.remove(name),
    "rmdir": lambda name: os.rmdir(name),
    "mkdir": lambda name: os.mkdir(name),
    "makedirs": lambda name: os.makedirs(name, exist_ok=True),
    "rmtree": shutil.rmtree,
    "truncate": lambda name: os.truncate(name, 3),
    "chmod": lambda name: os.chmod(name, 0o640) if os.path.isfile(name) else None,
    "chdir_and_write": chdir_and_write,
    "rename": lambda old, new: os.rename(old, new),
    "replace": lambda old, new: os.replace(old, new),
    "copyfile": shutil.copyfile,
    "move": shutil.move,
    "copytree": shutil.copytree,
    "symlink": lambda old, new: os.symlink(old, new),
    "link": lambda old, new: os.link(old, new),
}


def outcome(action: tuple[Any, ...]) -> Any:
    try:
        result = STEPS[action[0]](*action[1:])
    except shutil.Error as error:
        return type(error).__name__
    except OSError as error:
        return type(error).__name__, error.errno
    return result if isinstance(result, str) else None


def tree() -> dict[str, Any]:
    """All that is visible below the working folder, looked at in several ways."""
    seen: dict[str, Any] = {}
    for folder, folders, files in os.walk("."):
        assert sorted(os.listdir(folder)) == sorted([*folders, *files])
        for name in folders + files:
            place = os.path.join(folder, name)
            mode = os.lstat(place).st_mode
            content: Any = None
            if stat.S_ISLNK(mode):
                content = os.readlink(place)
            elif stat.S_ISREG(mode):
                with open(place) as file:
                    content = file.read()
                assert len(content) == os.path.getsize(place)
            kind = stat.S_IFMT(mode), stat.S_IMODE(mode) if stat.S_ISREG(mode) else 0
            seen[place] = (*kind, content, os.path.exists(place), os.path.isdir(place))
    return seen


@contextlib.contextmanager
def overlaid(store: Store) -> Iterator[Overlay]:
    overlay, patches = Overlay(store), Patches()
    install_files(patches, overlay)
    try:
        yield overlay
    finally:
        patches.restore()


def run(actions: list[tuple[Any, ...]], folder: Path) -> list[Any]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        return [(action, outcome(action), tree()) for action in actions]
    finally:
        os.chdir(before)


def assert_as_the_file_system(actions: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        real, shown = Path(place, "real", "here"), Path(place, "shown", "here")
        for folder in (real, shown):
            folder.mkdir(parents=True)
            furnish(folder)
        before = standing(shown.parent)
        expected = run(actions, real)
        store = Store.create(parent=place)

        with overlaid(store):
            seen = run(actions, shown)
        store.close()

        assert seen == expected
        assert standing(shown.parent) == before
        assert sorted(os.listdir(place)) == ["real", "shown"]


#: What a program does, in this order; much of it is an error.
ACTIONS: list[tuple[Any, ...]] = [
    ("scan", "."), ("read", "nowhere"), ("read", "link"), ("write", "nowhere/x", "w"),
    ("write", "a/x", "w"),
    ("write", "nowhere", "r+"), ("write", "d", "w"), ("write", "a", "x"), ("write", "new", "x"),
    ("write", "b", "r+"), ("write", "link", "a"), ("write", "d/e/z", "w+"), ("touch", "d/x"),
    ("remove", "nowhere"), ("remove", "d"), ("rmdir", "a"), ("rmdir", "d"), ("rmdir", "nowhere"),
    ("mkdir", "d"), ("mkdir", "nowhere/x"), ("mkdir", "n"), ("write", "n/f", "w"),
    ("truncate", "d/x"), ("truncate", "n/f"), ("truncate", "d"), ("chmod", "a"), ("chmod", "n/f"),
    ("rename", "d", "d/e/f"), ("rename", "d/e", "d"), ("rename", "a", "d"), ("rename", "d", "a"),
    ("rename", "nowhere", "a"), ("rename", "a", "nowhere/x"), ("rename", "a", "hard"),
    ("rename", "n", "d"), ("rename", "n", "d/e/n"), ("rename", "d/e/n", "m"),
    ("link", "d", "second"), ("link", "nowhere", "second"), ("link", "m/f", "m/g"),
    ("link", "b", "second"), ("link", "link", "third"), ("link", "m/f", "d/x"),
    ("write", "second", "a"), ("write", "hard", "a"), ("read", "a"),
    ("symlink", "d", "s"), ("symlink", "nowhere", "a"), ("symlink", "../a", "m/a"),
    ("replace", "m/f", "d/x"), ("replace", "b", "new"), ("chdir_and_write", "s"),
    ("copyfile", "d/x", "m/f"), ("copytree", "d", "m/d"), ("copytree", "d", "m/d"),
    ("move", "d", "moved"), ("move", "m", "moved"), ("makedirs", "d/e"), ("write", "d/x", "w"),
    ("rmtree", "moved"), ("rmtree", "d"), ("mkdir", "d"), ("write", "d/x", "a"),
    ("remove", "a"), ("access", "a"), ("write", "a", "w"), ("access", "a"), ("remove", "hard"),
    ("scan", "."), ("scan", "d"), ("scan", "nowhere"), ("read_by_an_opener", "a"),
    ("read_by_an_opener", "hard"), ("remove", "link"),
    ("symlink", "round", "round"), ("read", "round"), ("write", "round/x", "w"),
]  # fmt: skip


@pytest.mark.parametrize(
    "actions", [*([action] for action in ACTIONS), ACTIONS], ids=lambda actions: str(len(actions))
)
def test_each_step_alone_and_all_of_them_are_as_on_the_file_system(
    actions: list[tuple[Any, ...]],
) -> None:
    assert_as_the_file_system(actions)


@pytest.mark.parametrize(
    "actions",
    [
        [("rename", "a", "n"), ("truncate", "hard"), ("write", "n/m", "w"), ("read", "n/m")],
        [("rename", "d", "n"), ("write", "n/same", "w"), ("read", "n/e/z"), ("read", "n/same/x")],
        [("rename", "d/e", "n"), ("write", "n/z", "a"), ("read", "d/same"), ("remove", "n/z")],
    ],
)
def test_names_of_one_file_stay_so_where_one_of_them_or_its_folder_moved(
    actions: list[tuple[Any, ...]],
) -> None:
    assert_as_the_file_system(actions)


@pytest.mark.slow
@settings(max_examples=60)
@given(actions=st.lists(step, max_size=8))
def test_it_does_what_the_file_system_does_and_leaves_all_as_it_was(
    actions: list[tuple[Any, ...]],
) -> None:
    assert_as_the_file_system(actions)

"""The store at its end: what goes, what stays, and what is kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.store.store import Store


def written(folder: Path, text: str) -> Store:
    """A store after a script's lines ran in a folder."""
    store, patches, before = Store.create(), Patches(), Path.cwd()
    os.chdir(folder)
    overlay = Overlay(store)
    install_files(patches, overlay)
    try:
        exec(text, {"Path": Path, "os": os})
    finally:
        patches.restore()
        os.chdir(before)
    return store


def test_what_another_program_put_into_a_new_folder_stays(tmp_path: Path) -> None:
    store = written(tmp_path, "os.makedirs('runs/1'); Path('runs/1/ours').write_text('ours')")
    (tmp_path / "runs" / "1" / "theirs").write_text("theirs")

    store.close()

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1", "runs", "theirs"]


def test_what_replaced_a_new_file_stays(tmp_path: Path) -> None:
    store = written(tmp_path, "Path('new').write_text('ours')")
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "other").replace(tmp_path / "new")

    store.close()

    assert (tmp_path / "new").read_text() == "theirs"


def test_what_the_script_writes_into_the_folder_that_keeps_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()
    Path("old").write_text("old")
    store = written(tmp_path, "Path('kept/in').write_text('in'); Path('old').write_text('new')")

    store.close(keep="kept")

    assert Path("old").read_text() == "old"
    assert {path.name: path.read_text() for path in Path("kept").iterdir()} == {
        "in": "in", "old": "new",
    }  # fmt: skip


def test_what_cannot_be_kept_is_named_and_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = written(tmp_path, "Path('a').write_text('a'); Path('b').write_text('b')")
    copy = shutil.copy2

    def full(source: str, target: str, **options: bool) -> str:
        if target.endswith("/a"):
            Path(target).write_text("half")
            raise OSError(28, "No space left on device")
        return str(copy(source, target, **options))

    monkeypatch.setattr(shutil, "copy2", full)

    store.close(keep="kept")

    assert store.not_kept == [f"{tmp_path / 'a'} (No space left on device)"]
    assert [path.name for path in Path("kept").iterdir()] == ["b"]
    assert not Path("a").exists() and not Path(store.folder).exists()


def test_what_is_about_to_be_made_is_recorded_before_it_stands_there(tmp_path: Path) -> None:
    store, path = Store.create(), str(tmp_path / "new")
    mark = Path(f"{store.folder}/made{path}")

    class Killed(BaseException):
        pass

    with pytest.raises(Killed), store.making(path):
        assert mark.read_text() == "0 0"
        Path(path).touch()
        raise Killed
    with pytest.raises(FileExistsError), store.making(str(tmp_path / "other")):
        raise FileExistsError
    (tmp_path / "other").touch()
    store.close()

    assert [path.name for path in tmp_path.iterdir()] == ["other"]

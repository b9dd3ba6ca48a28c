"""Entries are whole, of this version and one's own, or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from neusight.fake_cuda.compiling.cache.entries import Entries


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def entries(tmp_path: Path, reported: list[str]) -> Entries:
    return Entries(tmp_path / "kept", version="1", warn=reported.append)


def only_file(entries: Entries) -> Path:
    [path] = entries.folder.iterdir()
    return path


def test_contents_come_back_by_their_key(entries: Entries, reported: list[str]) -> None:
    entries.write("a", b"first")
    entries.write("a", b"second")
    entries.write("b", b"third")

    assert sorted(entries.read("a")) == [b"first", b"second"]
    assert list(entries.read("b")) == [b"third"]
    assert list(entries.read("c")) == []
    assert reported == []


def test_the_folder_is_this_users_alone(entries: Entries) -> None:
    entries.write("a", b"content")

    assert entries.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "damage",
    [b"", b"\n", b"{}\n", b"[1]\npacked", b'{"schema": 1, "version": "1", "sha256": "0"}\n'],
)
def test_what_is_damaged_is_left_aside_and_shown_once(
    entries: Entries, reported: list[str], damage: bytes
) -> None:
    entries.write("a", b"content")
    entries.write("b", b"content")
    for path in entries.folder.iterdir():
        path.write_bytes(damage)

    assert list(entries.read("a")) == list(entries.read("b")) == []
    assert reported == [f"a compiled graph in {entries.folder} is compiled again: it is damaged"]
    assert list(entries.folder.iterdir()) == []


def test_a_content_of_which_a_byte_turned_is_damaged(entries: Entries, reported: list[str]) -> None:
    entries.write("a", b"content" * 100)
    path = only_file(entries)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)

    assert list(entries.read("a")) == []
    assert reported[0].endswith("it is damaged")


def test_an_entry_of_another_version_is_left_aside(entries: Entries, reported: list[str]) -> None:
    Entries(entries.folder, version="2", warn=reported.append).write("a", b"content")

    assert list(entries.read("a")) == []
    assert reported[0].endswith("it is of another version of neusight")


def test_what_others_may_write_is_not_trusted(entries: Entries, reported: list[str]) -> None:
    entries.write("a", b"content")
    only_file(entries).chmod(0o666)

    assert list(entries.read("a")) == []
    assert reported[0].endswith("another user may have written it")


def test_a_link_is_not_followed(entries: Entries, tmp_path: Path) -> None:
    entries.write("a", b"content")
    path = only_file(entries)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert list(entries.read("a")) == []


def test_the_oldest_go_where_they_take_too_much(tmp_path: Path, reported: list[str]) -> None:
    entries = Entries(tmp_path, version="1", warn=reported.append, most_bytes=4000)
    for number in range(3):
        entries.write(f"key{number}", os.urandom(900))
        os.utime(next(tmp_path.glob(f"key{number}-*")), (number, number))
    list(entries.read("key0"))  # used just now

    entries.write("key3", os.urandom(900))

    left = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert left == ["key0", "key3"]


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, reported: list[str]) -> None:
    (tmp_path / "file").write_text("")
    entries = Entries(tmp_path / "file" / "below", version="1", warn=reported.append)

    entries.write("a", b"content")

    assert list(entries.read("a")) == []
    assert reported == []


def test_several_write_and_read_at_once(entries: Entries, reported: list[str]) -> None:
    def work() -> None:
        for number in range(20):
            entries.write(f"key{number % 4}", b"%d" % (number % 4) * 1000)
            found.extend(entries.read(f"key{number % 4}"))

    found: list[bytes] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 80
    assert reported == []
    assert len(list(entries.folder.iterdir())) == 4

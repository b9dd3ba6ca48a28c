"""Files of ours: nothing of the user's is replaced, widened or followed that should not be."""

from __future__ import annotations

import gzip
import math
import os
import re
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from neusight.predictors.errors import DataError
from neusight.predictors.files import Fields, json_value, read_json_document, write_atomically

# -- writing ---------------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file may grow longer, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_file_has_the_mode_that_open_would_give_it(tmp_path: Path) -> None:
    with umask(0o027):
        write_atomically(tmp_path / "deep" / "new.json", b"1")

    assert (tmp_path / "deep" / "new.json").read_bytes() == b"1"
    assert mode_of(tmp_path / "deep" / "new.json") == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o666, 0o400])
def test_the_mode_of_a_file_that_is_there_is_kept(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "private.json"
    path.write_bytes(b"old")
    path.chmod(mode)

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert mode_of(path) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_of_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)

    write_atomically(path, b"new")

    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed_and_stays_a_link(is_there: bool, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.json"
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"old")
    link = tmp_path / "link.json"
    link.symlink_to(Path("elsewhere") / "real.json")

    write_atomically(link, b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_links_planted_under_predictable_names_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    out = tmp_path / "out"
    out.mkdir()
    for name in (f".a.json.{os.getpid()}", ".a.json.partial", f"a.{os.getpid()}"):
        (out / name).symlink_to(victim)

    write_atomically(out / "a.json", b"new")

    assert victim.read_bytes() == b"precious"
    assert (out / "a.json").read_bytes() == b"new"
    assert not (out / "a.json").is_symlink()


def test_a_device_stays_a_device() -> None:
    write_atomically("/dev/null", b"gone")

    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_device_is_an_error_and_stays() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_atomically("/dev/full", b"x")

    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_named_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()

    write_atomically(pipe, b"through")
    reader.join()

    assert received == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("is_file", [True, False])
def test_standard_output_is_written_between_what_is_printed(is_file: bool, tmp_path: Path) -> None:
    program = (
        "from neusight.predictors.files import write_atomically\n"
        "print('before'); write_atomically('/dev/stdout', b'data\\n'); print('after')\n"
    )
    path = tmp_path / "out.txt"

    with path.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=file if is_file else subprocess.PIPE, check=True
        )

    assert (path.read_bytes() if is_file else done.stdout) == b"before\ndata\nafter\n"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(b"old")

    with room_for(1000), pytest.raises(OSError, match=r"."):
        write_atomically(path, b"x" * 2000)

    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(b"old")

    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_a_folder_is_refused_and_stays(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, b"x")


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".json")

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"


# -- reading ---------------------------------------------------------------------------------------


def document_in(path: Path, **options: Any) -> Fields:
    return read_json_document(
        path, kind="table", error=DataError, remedy="Measure again.", **options
    )


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (b"", "it is no JSON (Expecting value, line 1, column 1)"),
        (b'{"a":\n 1', "it is no JSON (Expecting ',' delimiter, line 2, column 3)"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b"[NaN]", "NaN is no figure"),
        (b"[-Infinity]", "-Infinity is no figure"),
        (b"[1e999]", "the number '1e999' is too large"),
        (b"[" + b"9" * 21 + b"]", "a whole number has 21 digits"),
        (b"[" + b"9" * 5000 + b"]", "a whole number has 5000 digits"),
        (b"\xff\xfe{", "it is not UTF-8 text (byte 0)"),
        (b'["\\ud800"]', "it holds half of a character (a lone surrogate)"),
        (b"[" * 65 + b"]" * 65, "it is nested more than 64 deep"),
        (b"[" * 100_000, "it is nested more than 64 deep"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "it is nested more than 64 deep"),
        (b'{"' * 2**18, "it is nested more than 64 deep"),
        (b"[" + b"1," * 16_000_000 + b"1]", "it holds more than 16,000,000 values"),
    ],
    ids=range(15),
)
def test_what_no_document_of_ours_holds_is_refused_in_text(data: bytes, reported: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reported)):
        json_value(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["[[[\\"[[{{"]', ['[[["[[{{']),
        ('"\\\\\\""', '\\"'),
        ("[" * 64 + "]" * 64, None),
        ('\ufeff{"a": "é \\u00e9 \\ud83d\\ude00"}', {"a": "é é 😀"}),
        ("[18446744073709551615, 1e308, -0.0, 1e-999]", [2**64 - 1, 1e308, -0.0, 0.0]),
    ],
)
def test_what_json_allows_is_read(text: str, value: object) -> None:
    found = json_value(text)

    assert value is None or found == value


def test_a_document_is_read_gzipped_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'{"v": 1, "m": 4}')
    (tmp_path / "b").write_bytes(gzip.compress(b'{"v": 1, "m": 4}'))

    found = [document_in(tmp_path / name, version=1, version_field="v") for name in "ab"]

    assert [item.count("m") for item in found] == [4, 4]


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (None, "The table PATH cannot be read: No such file or directory. Measure again."),
        (b"{", "The table PATH cannot be read: it is no JSON (Expecting property name enclosed"),
        (b"[1]", "PATH is not a table that neusight wrote. Measure again."),
        (b"{}", "PATH is not a table that neusight wrote. Measure again."),
        (b'{"v": true}', "The table PATH has schema version True, this neusight reads 1."),
        (b'{"v": [[[]]]}', "The table PATH has schema version [[[]]], this neusight reads 1."),
        (gzip.compress(b"{}")[:-9], "The table PATH cannot be read: its gzip data is damaged"),
        (gzip.compress(b"{}")[:12] + b"\xff" * 9, "its gzip data is damaged"),
    ],
    ids=range(8),
)
def test_a_file_that_is_no_document_is_refused_by_name(
    data: bytes | None, reported: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    if data is not None:
        path.write_bytes(data)

    with pytest.raises(DataError, match=re.escape(reported.replace("PATH", str(path)))):
        document_in(path, version=1, version_field="v")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress(bytes(2**28 + 1), compresslevel=1))

    with pytest.raises(DataError, match=r"t\.gz cannot be read: it holds more than 256 MiB"):
        document_in(tmp_path / "t.gz", version=1, version_field="v")


def test_a_wrong_field_is_named_with_its_place() -> None:
    document = Fields(
        {"rows": [{"m": 1, "n": "x" * 1000}]}, "table", "t.json", error=DataError, remedy="Again."
    )
    [row] = document.rows("rows")

    assert row.count("m") == 1
    with pytest.raises(DataError) as caught:
        row.number("n", least=0, most=9)

    shown_text = "'" + "x" * 79
    assert str(caught.value) == (
        f"The table t.json is damaged: 'rows[0].n' is {shown_text}…; it must be a number from 0 "
        "to 9. Again."
    )


@pytest.mark.parametrize(
    ("take", "values"),
    [
        (lambda fields: fields.text("a"), [1, None, "", [], True]),
        (lambda fields: fields.choice("a", ("x", "y")), ["z", 1, ["x"], {}]),
        (lambda fields: fields.flag("a"), [0, 1, "true", None]),
        (lambda fields: fields.number("a"), [True, "1", math.nan, math.inf, 10**400, None]),
        (lambda fields: fields.number("a", least=1, most=2), [0.9, 2.1]),
        (lambda fields: fields.count("a"), [-1, 1.0, True, 2**63, "1"]),
        (lambda fields: fields.items("a"), [{}, "ab", None]),
        (lambda fields: fields.texts("a"), [[1], "ab", [None]]),
        (lambda fields: fields.mapping("a"), [[], "ab", None]),
        (lambda fields: fields.text_by_name("a"), [{"b": 1}, []]),
        (lambda fields: fields.rows("a"), [[1], [{}, None], {}]),
    ],
)
def test_values_of_another_kind_are_refused(
    take: Callable[[Fields], object], values: list[object]
) -> None:
    for value in [*values, "missing"]:
        given = {"a": value} if value != "missing" else {}
        with pytest.raises(DataError, match="'a' is"):
            take(Fields(given, "table", "t.json", error=DataError, remedy="Again."))

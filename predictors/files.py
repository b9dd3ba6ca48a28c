"""Files of neusight: written atomically, read within bounds and with every field checked."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import secrets
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from neusight.predictors.errors import NeusightError

#: Unpacked bytes of a document that are read at most: no recording of a training script comes near.
MAX_DOCUMENT_BYTES = 256 * 2**20

#: Values in a document: some 64 bytes of memory each, so a gigabyte.
_MOST_VALUES = 16_000_000

#: Objects and lists within each other; the deepest of ours has 12.
_MOST_DEPTH = 64

#: Digits of a whole number: 2^64 has 20. Beyond 308 a number is no float either.
_MOST_DIGITS = 20

#: Characters of a wrong value that a message shows.
_SHOWN_CHARS = 80

#: Mode of a new file before the user's umask, as `open` has it.
_NEW_FILE_MODE = 0o666

#: Random bytes in a temporary name: it cannot be guessed, so no link can be placed there.
_NAME_BYTES = 8


def user_cache_folder() -> Path:
    """Where files of ours lie that can be made again: a folder in the user's cache.

    >>> user_cache_folder().name
    'neusight'
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() / ".cache")
    return Path(home) / "neusight"


# -- writing ---------------------------------------------------------------------------------------


def write_atomically(path: str | Path, data: bytes) -> None:
    """Writes aside and renames, so that no half-written file ever stands at `path`.

    Symbolic links are followed; mode and owner of a file that is there stay. What is no ordinary
    file (/dev/null, a pipe), and this process's own output (/dev/stdout), is written straight. The
    folder is made where it is missing. OSError where it fails; then nothing is left behind.
    """
    there = None
    with suppress(FileNotFoundError, NotADirectoryError):
        there = Path(path).stat()
    descriptor = None if there is None else _own_output(there)
    if descriptor is not None:
        _write_all(descriptor, data)
    elif there is not None and not stat.S_ISREG(there.st_mode):
        with Path(path).open("wb") as stream:
            stream.write(data)
    else:
        _replace(Path(os.path.realpath(path)), data, there)


def _own_output(there: os.stat_result) -> int | None:
    """The descriptor of stdout or stderr where that is the file: a renamed file would not be."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), there):
                return descriptor
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    """Flushes Python's buffers of the same output first."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _replace(target: Path, data: bytes, there: os.stat_result | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = _create_beside(target, is_new=there is None)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if there is not None:
                _take_over(descriptor, there)
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _create_beside(target: Path, *, is_new: bool) -> tuple[int, Path]:
    """A new file, not a link; private until it has its final mode.

    Not `tempfile.mkstemp`: only the kernel can apply the umask to a new file without changing it
    for all threads.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        aside = target.with_name(f".neusight-{secrets.token_hex(_NAME_BYTES)}")
        with suppress(FileExistsError):
            return os.open(aside, flags, _NEW_FILE_MODE if is_new else stat.S_IRUSR), aside


def _take_over(descriptor: int, there: os.stat_result) -> None:
    """Copies owner (if permitted) and mode of the file that is replaced."""
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (there.st_uid, there.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))


# -- reading ---------------------------------------------------------------------------------------


def read_json_document(
    source: str | Path,
    *,
    kind: str,
    error: type[NeusightError],
    remedy: str,
    version: int | None = None,
    version_field: str = "schema_version",
) -> Fields:
    """The fields of a JSON object in a file, gzipped or not, with its version checked.

    `kind` is what it should be ("calibration"), `remedy` the sentence that says what to do. Raises
    `error` where the file cannot be read, is no such object, of another version, or holds what no
    document of ours does: see `json_value`.
    """
    try:
        document = json_value(read_bytes(source))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"The {kind} {source} cannot be read: {reason}. {remedy}") from problem
    if not isinstance(document, dict) or (version is not None and version_field not in document):
        raise error(f"{source} is not a {kind} that neusight wrote. {remedy}")
    fields = Fields(document, kind=kind, source=str(source), error=error, remedy=remedy)
    if version is not None:
        fields.require_version(version_field, version)
    return fields


def read_bytes(source: str | Path, *, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """A file's content, unpacked where it is gzipped.

    OSError where it cannot be read, ValueError where it is longer than `most` or damaged.
    """
    try:
        with Path(source).open("rb") as stream:
            is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
            data = (gzip.GzipFile(fileobj=stream) if is_packed else stream).read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"its gzip data is damaged ({str(error).rstrip('.')})") from error
    if len(data) > most:
        raise ValueError(f"it holds more than {most >> 20} MiB")
    return data


def packaged_documents(folder: str) -> Iterator[tuple[str, Any]]:
    """The JSON files in a folder of this package by their names, in order."""
    from importlib.resources import files

    for item in sorted((files(__package__) / folder).iterdir(), key=lambda item: item.name):
        if item.name.endswith(".json"):
            yield item.name, json.loads(item.read_text(encoding="utf-8"))


def json_value(data: bytes | str) -> Any:
    """What a JSON text stands for; ValueError says in words what is wrong with it.

    Linear in time and memory. Beyond what JSON forbids, refused are: NaN and infinite numbers,
    names that an object has twice, halves of characters, whole numbers of more than 20 digits,
    what is nested more than 64 deep, and more values than fit into a gigabyte.

    >>> json_value('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if isinstance(data, str):
        data = data.encode("utf-8", errors="surrogatepass")
    _require_bounded(data)
    # Asked for only where it may be needed: a function of ours for each number takes its time.
    parse_int = _whole_number if _MANY_DIGITS.search(data) else None
    parse_float = _finite_number if _LARGE_EXPONENT.search(data) or parse_int else None
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_once_each,
            parse_constant=_no_constant,
            parse_int=parse_int,
            parse_float=parse_float,
        )
        if _HALF_CHARACTER.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a character (a lone surrogate)") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is no JSON ({error.msg}, {place})") from error
    return value


_MANY_DIGITS = re.compile(rb"\d{%d}" % (_MOST_DIGITS + 1))
_LARGE_EXPONENT = re.compile(rb"[eE]\+?\d{3}")
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
_STRUCTURE = b'"[]{},'
_REST = bytes(set(range(256)) - set(_STRUCTURE))
_TO_LISTS = bytes.maketrans(b"{}", b"[]")


def _require_bounded(data: bytes) -> None:
    """ValueError for a depth or a number of values that no document of ours has."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Between quotes are texts; what is left is structure alone.
    structure = b"".join(data.translate(None, _REST).split(b'"')[::2]).translate(_TO_LISTS)
    if structure.count(b",") + structure.count(b"[") > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    lists = structure.replace(b",", b"")
    for _ in range(_MOST_DEPTH):
        inner = lists.replace(b"[]", b"")
        if len(inner) == len(lists):
            break
        lists = inner
    if lists.count(b"[") > (0 if b"[]" in lists else _MOST_DEPTH):
        raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(twice)} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no figure")


def _whole_number(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"a whole number has {len(text)} digits")
    return int(text)


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shown(text)} is too large")
    return value


# -- fields ----------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A value as text for a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes whole numbers of at most 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def is_count(value: object) -> bool:
    """Whether that is a whole number, 0 or more, that fits into 63 bits (true is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: object) -> bool:
    """Whether that is a finite number (true is none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -_LARGEST <= value <= _LARGEST


def number_of(text: str) -> float | None:
    """The number that a text is, also inf or nan; None where it is none.

    >>> number_of("1.5"), number_of("many")
    (1.5, None)
    """
    try:
        return float(text)
    except ValueError:
        return None


#: Beyond that a whole number is no float.
_LARGEST = sys.float_info.max

#: Stands for "must be there".
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Fields:
    """The fields of one object in a document, each taken out by name and checked.

    `place` says where in the document the object is ("corrections[3]."), `source` names the file.

    >>> from neusight.predictors.errors import DataError
    >>> row = Fields({"m": 4}, "table", "a.json", error=DataError, remedy="Measure again.")
    >>> row.count("m"), row.count("n", default=1)
    (4, 1)
    """

    values: Mapping[str, Any]
    kind: str
    source: str
    error: type[NeusightError]
    remedy: str
    place: str = ""

    def text(self, name: str, *, default: str = _REQUIRED) -> str:
        """A string; not empty if it is required."""
        value = self._value(name, default)
        if not isinstance(value, str) or (default is _REQUIRED and not value):
            self.refuse(name, "a text")
        return str(value)

    def choice(self, name: str, options: Collection[str]) -> str:
        """One of those strings."""
        value = self._value(name)
        if not isinstance(value, str) or value not in options:
            self.refuse(name, f"one of {', '.join(map(repr, options))}")
        return str(value)

    def flag(self, name: str, *, default: bool = _REQUIRED) -> bool:
        """A boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return bool(value)

    def number(
        self,
        name: str,
        *,
        least: float = -_LARGEST,
        most: float = _LARGEST,
        default: float = _REQUIRED,
    ) -> float:
        """A number within those limits."""
        value = self._value(name, default)
        if not is_number(value) or not least <= value <= most:
            whole = (least, most) == (-_LARGEST, _LARGEST)
            self.refuse(name, "a number" if whole else f"a number from {least:g} to {most:g}")
        return float(value)

    def count(self, name: str, *, default: int = _REQUIRED) -> int:
        """An integer, 0 or more."""
        value = self._value(name, default)
        if not is_count(value):
            self.refuse(name, "a whole number, 0 or more")
        return int(value)

    def items(self, name: str, *, default: list[Any] = _REQUIRED) -> list[Any]:
        """A list of any values."""
        value = self._value(name, default)
        if not isinstance(value, list):
            self.refuse(name, "a list")
        return list(value)

    def texts(self, name: str, *, default: list[str] = _REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        found = self.items(name, default=default)
        if not all(isinstance(item, str) for item in found):
            self.refuse(name, "a list of texts")
        return tuple(found)

    def mapping(self, name: str, *, default: Mapping[str, Any] = _REQUIRED) -> dict[str, Any]:
        """An object with any values."""
        value = self._value(name, default)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return dict(value)

    def text_by_name(self, name: str, *, default: Mapping[str, str] = _REQUIRED) -> dict[str, str]:
        """An object whose values are strings."""
        found = self.mapping(name, default=default)
        if not all(isinstance(item, str) for item in found.values()):
            self.refuse(name, "an object of texts")
        return found

    def fields(self, name: str) -> Fields:
        """The fields of a nested object."""
        return self._within(self.mapping(name), f"{name}.")

    def rows(self, name: str) -> list[Fields]:
        """The fields of each object of a list."""
        found = self.items(name)
        if not all(isinstance(item, dict) for item in found):
            self.refuse(name, "a list of objects")
        return [self._within(item, f"{name}[{at}].") for at, item in enumerate(found)]

    def optional(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.values.get(name) is not None

    def require_only(self, names: Collection[str]) -> None:
        """Raises an error for any other field."""
        unknown = sorted(set(self.values) - set(names))
        if unknown:
            self.refuse(unknown[0], "left out: no such field is known")

    def require_version(self, name: str, version: int) -> None:
        """Raises an error for a document of another version."""
        found = self.values.get(name)
        if found != version or isinstance(found, bool):
            raise self.error(
                f"The {self.kind} {self.source} has schema version {shown(found)}, this neusight "
                f"reads {version}. {self.remedy}"
            )

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raises the error for a field, with the reason."""
        there = shown(self.values[name]) if name in self.values else "missing"
        raise self.error(
            f"The {self.kind} {self.source} is damaged: {shown(self.place + name)} is {there}; "
            f"it must be {wanted}. {self.remedy}"
        )

    def _value(self, name: str, default: Any = _REQUIRED) -> Any:
        return self.values.get(name, None if default is _REQUIRED else default)

    def _within(self, values: Mapping[str, Any], place: str) -> Fields:
        return Fields(
            values, self.kind, self.source, self.error, self.remedy, f"{self.place}{place}"
        )

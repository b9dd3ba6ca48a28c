"""Fields of a trace's events, whatever stands in them."""

from __future__ import annotations

from collections.abc import Iterator

#: Times above that, microseconds, are damage: thirty thousand years.
_MOST_US = 1e18

#: Lists within each other in the shapes of an operator: lists of tensors have 3.
_MOST_DEPTH = 4

#: Identities, sizes and bytes beyond that are damage.
_LARGEST_INTEGER = 2**63

#: Characters of a text that may hold a number, such as "stream 7".
_LONG_TEXT = 64


def is_timed(event: dict[str, object]) -> bool:
    """Whether it says when it began and how long it took."""
    return all(abs(number_of(event.get(key))) < _MOST_US for key in ("ts", "dur"))


def number_of(value: object) -> float:
    """As a float; NaN, which no comparison holds for, where it is none."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("nan")


def integer_of(value: object) -> int | None:
    """A whole number, also out of a text such as "stream 7"."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return int(value) if abs(value) < _LARGEST_INTEGER else None
    if isinstance(value, str) and len(value) < _LONG_TEXT:
        digits = value.split()[-1] if value.split() else ""
        return int(digits) if digits.isascii() and digits.isdigit() else None
    return None


def shapes_of(dims: object, depth: int = 0) -> Iterator[tuple[int, ...]]:
    """The shapes of tensors; a list of tensors gives one each, scalars and lists give ()."""
    if not isinstance(dims, list) or depth >= _MOST_DEPTH:
        return
    for item in dims:
        if isinstance(item, list) and item and isinstance(item[0], list):
            yield from shapes_of(item, depth + 1)
        elif isinstance(item, list) and all(_is_size(size) for size in item):
            yield tuple(item)
        else:
            yield ()


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _LARGEST_INTEGER


def types_of(value: object) -> tuple[str, ...]:
    """The types of an operator's arguments, as text."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()

"""What is in arguments and outputs, lists of lists included."""

from __future__ import annotations

from typing import TypeVar

_Kind = TypeVar("_Kind")


def flattened(value: object, kind: type[_Kind]) -> list[_Kind]:
    """All of one kind in a value, lists and tuples flattened, in order.

    >>> flattened((1, [2, "three"], None, (4,)), int)
    [1, 2, 4]
    """
    if isinstance(value, kind):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in flattened(item, kind)]
    return []

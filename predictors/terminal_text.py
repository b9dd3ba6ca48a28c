"""Names as a terminal may show them: whoever named a module or a file draws nothing on it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["printable", "printable_lines", "printable_text"]


def printable(text: str) -> str:
    """The text in one line, control characters and those that turn its direction as escapes.

    >>> print(printable("layer\\x1b[31m\\n.weight"))
    layer\\x1b[31m\\n.weight
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _named(character) for character in text
    )


def printable_lines(lines: Iterable[str]) -> str:
    """A text of those lines, each as one."""
    return "\n".join(printable(line) for line in lines)


def printable_text(text: str) -> str:
    """The same for a text that has lines already."""
    return printable_lines(text.split("\n"))


def _named(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode("ascii")

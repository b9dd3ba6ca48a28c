"""Amounts as people read them: times, bytes, percents, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

#: How much of the smallest unit each larger one is, the largest first.
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
#: Below that share of a unit two decimals are too few; so many digits are shown, of what is not
#: next to nothing.
_SMALL_PART, _SMALL_PART_DIGITS, _LEAST_SHOWN = 0.1, 3, 1e-4
#: Of so many a second and more, what is behind the point says nothing.
_ROUNDED_RATE = 1000
_FLOPS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))


def time_text(
    microseconds: float, *, decimals: int = 2, signed: bool = False, like: float | None = None
) -> str:
    """A duration; microseconds have one decimal, the units above them `decimals`. `like` is
    another one, whose unit it takes: what is compared is shown in one unit.

    >>> time_text(12.34), time_text(1234.5), time_text(2.5e6), time_text(1234.5, decimals=3)
    ('12.3 µs', '1.23 ms', '2.50 s', '1.234 ms')
    >>> time_text(802.9, like=1610.0), time_text(2170.0, like=802.9)
    ('0.80 ms', '2170.0 µs')

    Small parts of a long time keep three digits:

    >>> time_text(23_456.0, like=1.2e6)
    '0.0235 s'
    """
    factor, unit = _unit(abs(microseconds if like is None else like), _TIMES)
    sign = "+" if signed else ""
    amount = microseconds / factor
    if factor == 1:
        decimals = 1
    elif _LEAST_SHOWN <= abs(amount) < _SMALL_PART:
        decimals = max(decimals, _SMALL_PART_DIGITS - 1 - math.floor(math.log10(abs(amount))))
    return f"{amount:{sign}.{decimals}f} {unit}"


def milliseconds_text(microseconds: float) -> str:
    """A time in a column of milliseconds; below one with as many digits as matter.

    >>> milliseconds_text(34470.0), milliseconds_text(563.56)
    ('34.47', '0.5636')
    """
    return f"{microseconds / 1e3:,.2f}" if microseconds >= 1e3 else f"{microseconds / 1e3:.4f}"


def bytes_text(count: float) -> str:
    """An amount of memory, in GiB from one on, else in MiB.

    >>> bytes_text(3 * 2**29), bytes_text(2**20), bytes_text(100)
    ('1.50 GiB', '1.0 MiB', '0.0 MiB')
    """
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.1f} MiB"


def counted(count: int, noun: str, *, width: int = 0) -> str:
    """How many there are of something, the number at the right of `width` places.

    >>> counted(1, "kernel"), counted(12, "kernel", width=4)
    ('1 kernel', '  12 kernels')
    """
    return f"{count:>{width}} {noun}{'' if count == 1 else 's'}"


def amount_text(value: float, unit: str, *, signed: bool = False) -> str:
    """An amount of "us", "bytes", "flops", "" (a count) or so many a second ("tokens/s"), exact
    enough to show what changed.

    >>> amount_text(1234.5, "us"), amount_text(2**20, "bytes", signed=True)
    ('1.234 ms', '+1.00 MiB')
    >>> amount_text(237640.4, "tokens/s"), amount_text(7.25, "samples/s")
    ('237,640 tokens/s', '7.25 samples/s')
    """
    sign = "-" if value < 0 else "+" if signed else ""
    return sign + _size_text(abs(value), unit)


def _size_text(size: float, unit: str) -> str:
    if unit == "bytes":
        factor, name = _unit(size, _BYTES)
        return f"{size / factor:.{2 if factor > 1 else 0}f} {name}"
    if unit == "flops":
        factor, name = _unit(size, _FLOPS)
        return f"{size / factor:.4g} {name}" if factor > 1 else f"{size:.0f} {name}"
    if unit == "us":
        factor, name = _unit(size, _TIMES)
        return f"{size / factor:.4g} {name}"
    if unit.endswith("/s"):
        return f"{size:,.0f} {unit}" if size >= _ROUNDED_RATE else f"{size:.4g} {unit}"
    return f"{size:,.0f}"


def _unit(size: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest of the units of which there is at least one, else the smallest."""
    return next((unit for unit in units if size >= unit[0]), units[-1])


def percent_text(share: float | None, *, missing: str = "") -> str:
    """A relative error with its sign; `missing` where there is none.

    >>> percent_text(0.125), percent_text(None, missing="-")
    ('+12.5%', '-')
    """
    return missing if share is None else f"{share:+.1%}"


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """A line for each row, columns as wide as their widest cell: those in `left` to the left, the
    others to the right.

    >>> aligned([("GPU", "ms"), ("T4", "10.5")])
    ['GPU    ms', 'T4   10.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

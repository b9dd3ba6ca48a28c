"""Curves as SVG: lines over an axis, with a legend, read without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 540, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 28, 44
#: Points of a curve that are drawn at most.
_MOST_POINTS = 600
_TICKS = 5
#: Classes of colours in the page's style.
_COLOURS = 8


@dataclass(frozen=True)
class ChartCurve:
    """Points in order of x; `is_marked` shows each, `is_joined` draws the line between them."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_marked: bool = False
    is_joined: bool = True
    is_dashed: bool = False
    colour: int | None = None


def chart(
    title: str,
    curves: Sequence[ChartCurve],
    *,
    x: str,
    y: str,
    limit: tuple[float, str] | None = None,
    is_log: bool = False,
) -> str:
    """A figure with all curves; `limit` is a horizontal line and its name; `is_log` the y axis.

    Nothing is drawn of an empty figure.
    """
    shown = [point for curve in curves for point in curve.points]
    if not shown:
        return ""
    values = [value for _, value in shown] + ([limit[0]] if limit else [])
    if is_log:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        high = high if high > low else low * 10
    else:
        low, high = 0.0, _rounded_up(max(values))
    first, last = min(at for at, _ in shown), max(at for at, _ in shown)
    left, right = (0.0 if first < (last - first) else first), last if last > first else first + 1
    axes = _Axes(left, right, low, high, is_log)
    parts = [
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>',
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *axes.drawn(x, y),
    ]
    if limit is not None:
        height = axes.y(limit[0])
        parts.append(
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" '
            f'y2="{height:.1f}"/><text x="{_WIDTH - _RIGHT}" y="{height - 4:.1f}" '
            f'text-anchor="end">{escape(limit[1])}</text>'
        )
    for at, curve in enumerate(curves):
        parts += _drawn(curve, axes, at % _COLOURS if curve.colour is None else curve.colour)
    parts.append("</svg>")
    parts += [_legend(curves), "</figure>"] if len(curves) > 1 else ["</figure>"]
    return "".join(parts)


@dataclass(frozen=True)
class _Axes:
    left: float
    right: float
    low: float
    high: float
    is_log: bool

    def x(self, value: float) -> float:
        """Where a value lies."""
        share = (value - self.left) / (self.right - self.left)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """How high a value lies; below the axis is on it."""
        if self.is_log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - min(1.0, max(0.0, share)) * (_HEIGHT - _TOP - _BOTTOM)

    def drawn(self, x: str, y: str) -> list[str]:
        """Lines, numbers and names of both."""
        parts: list[str] = []
        for value in self._y_ticks():
            height = self.y(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" '
                f'y2="{height:.1f}"/><text x="{_LEFT - 6}" y="{height + 4:.1f}" '
                f'text-anchor="end">{number_text(value)}</text>'
            )
        step = _rounded_up((self.right - self.left) / _TICKS)
        for at in range(math.ceil(self.left / step), math.floor(self.right / step + 1e-9) + 1):
            value = at * step
            parts.append(
                f'<text x="{self.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
                f'text-anchor="middle">{number_text(value)}</text>'
            )
        parts.append(
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 8}" '
            f'text-anchor="middle">{escape(x)}</text><text x="4" y="14">{escape(y)}</text>'
        )
        return parts

    def _y_ticks(self) -> list[float]:
        if not self.is_log:
            return [self.high * at / _TICKS for at in range(_TICKS + 1)]
        decades = round(math.log10(self.high / self.low))
        return [self.low * 10.0**at for at in range(decades + 1)]


def _drawn(curve: ChartCurve, axes: _Axes, colour: int) -> list[str]:
    points = curve.points[:: 1 + (len(curve.points) - 1) // _MOST_POINTS]
    places = [(axes.x(at), axes.y(value)) for at, value in points]
    parts: list[str] = []
    if curve.is_joined and len(places) > 1:
        path = " ".join(f"{at:.1f},{height:.1f}" for at, height in places)
        dashes = ' stroke-dasharray="5 4"' if curve.is_dashed else ""
        parts.append(f'<polyline class="line c{colour}" points="{path}"{dashes}/>')
    if curve.is_marked or len(places) == 1:
        for (at, height), (x, y) in zip(places, points, strict=True):
            words = escape(f"{curve.name}: {number_text(y)} at {number_text(x)}")
            parts.append(
                f'<circle class="dot c{colour}" cx="{at:.1f}" cy="{height:.1f}" r="4">'
                f"<title>{words}</title></circle>"
            )
    return parts


def _legend(curves: Sequence[ChartCurve]) -> str:
    items = "".join(
        f'<span class="key"><svg class="swatch" viewBox="0 0 18 8"><line class="line '
        f'c{at % _COLOURS if curve.colour is None else curve.colour}" x1="0" x2="18" y1="4" '
        f'y2="4"{" stroke-dasharray=" + chr(34) + "5 4" + chr(34) if curve.is_dashed else ""}/>'
        f"</svg>{escape(curve.name)}</span>"
        for at, curve in enumerate(curves)
    )
    return f'<div class="legend">{items}</div>'


def number_text(value: float) -> str:
    """A number of an axis.

    >>> number_text(1500), number_text(0.25), number_text(12.0)
    ('1,500', '0.25', '12')
    """
    if value and abs(value) < 1:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"


def _rounded_up(value: float) -> float:
    """The next number that is easy to read."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 2.5, 5, 10) if step * unit >= value * 0.999)

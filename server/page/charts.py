"""Pictures of figures as SVG in a page. The page's style colours them by class, in the light and in the dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup, escape

from server.page.figures import milliseconds, moment, number

_WIDTH, _HEIGHT = 400.0, 170.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 6.0, 10.0, 20.0
_GAP = 0.2  # of a column's width


@dataclass(frozen=True)
class Series:
    """Values of one kind in all columns of a chart. ``style``: its class."""

    label: str
    style: str
    values: Sequence[int]


@dataclass(frozen=True)
class Moment:
    """A plan of a device. ``change``: names the plan where another kind begins; None: the same as before."""

    time: str
    latency_ms: float
    budget_ms: float | None
    change: str | None = None


@dataclass(frozen=True)
class Point:
    """A point of a front."""

    x: float
    y: float
    label: str
    style: str = "dot"


def columns(series: Sequence[Series], names: Sequence[str], ticks: Mapping[int, str], *, said: str) -> Markup:
    """Stacked columns. ``names``: of the columns; ``ticks``: texts at the left edge of some; ``said``: in words."""
    totals = [sum(one.values[place] for one in series) for place in range(len(names))]
    top, floor = nice_top(max(totals, default=0)), _HEIGHT - _BOTTOM
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(names), 1)
    parts = [*_scale(top)]
    for place, name in enumerate(names):
        y, x = floor, _LEFT + place * width
        for one in series:
            value = one.values[place]
            if value:
                height = value / top * (floor - _TOP)
                y -= height
                title = Markup("<title>{}: {}, {}</title>").format(name, one.label, number(value))
                parts.append(_box(x + width * _GAP / 2, y, width * (1 - _GAP), height, one.style, title))
    parts += [_text(_LEFT + place * width, _HEIGHT - 5, text, "tick middle") for place, text in ticks.items()]
    return _svg(parts, said)


def timeline(moments: Sequence[Moment], *, said: str) -> Markup:
    """Latencies of a device's plans over time, against their budgets."""
    times = [datetime.fromisoformat(one.time).timestamp() for one in moments]
    first, span = times[0], max(times[-1] - times[0], 1.0)
    top, floor = nice_top(max(max(one.latency_ms, one.budget_ms or 0.0) for one in moments)), _HEIGHT - _BOTTOM
    xs = [_LEFT + (time - first) / span * (_WIDTH - _LEFT - _RIGHT - 40) for time in times]

    def y(value_ms: float) -> float:
        return floor - value_ms / top * (floor - _TOP)

    parts = [*_scale(top, unit=" ms")]
    for place, one in enumerate(moments):
        end = xs[place + 1] if place + 1 < len(xs) else _WIDTH - _RIGHT
        if one.change is not None:
            parts.append(_line(xs[place], _TOP, xs[place], floor, "change"))
            parts.append(_text(xs[place] + 3, _TOP + 7, one.change[:24], "tick"))
        if one.budget_ms is not None:
            parts.append(_line(xs[place], y(one.budget_ms), end, y(one.budget_ms), "budget"))
        parts.append(_line(xs[place], y(one.latency_ms), end, y(one.latency_ms), "latency"))
    for x, one in zip(xs, moments, strict=True):
        over = one.budget_ms is not None and one.latency_ms > one.budget_ms
        text = f"{moment(one.time)}: {milliseconds(one.latency_ms)} ms"
        parts.append(_dot(x, y(one.latency_ms), text, "dot bad" if over else "dot"))
    parts += [_text(_LEFT, _HEIGHT - 5, moments[0].time[:10], "tick")]
    if moments[-1].time[:10] != moments[0].time[:10]:
        parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 5, moments[-1].time[:10], "tick end"))
    return _svg(parts, said, "long")


def front(points: Sequence[Point], *, x_label: str, said: str) -> Markup:
    """Points: shares of work to the right, accuracies upwards from just below the lowest."""
    low, high = min(one.y for one in points), max(one.y for one in points)
    bottom = max(0.0, math.floor(10 * low - 0.5) / 10)
    top = min(1.0, math.ceil(10 * high + 0.2) / 10)
    right, floor = max(1.0, max(one.x for one in points)) * 1.04, _HEIGHT - _BOTTOM
    parts = [*_scale(top, bottom=bottom, percent=True)]
    for one in points:
        x = _LEFT + one.x / right * (_WIDTH - _LEFT - _RIGHT)
        y = floor - (one.y - bottom) / max(top - bottom, 1e-9) * (floor - _TOP)
        parts.append(_dot(x, y, one.label, one.style))
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + tick / right * (_WIDTH - _LEFT - _RIGHT)
        parts.append(_text(x, _HEIGHT - 5, f"{tick:.0%}", "tick middle"))
    parts.append(_text(_WIDTH - _RIGHT, floor - 4, x_label, "tick end"))
    return _svg(parts, said)


def bar(share: float, style: str = "", *, tick: float | None = None) -> Markup:
    """A bar in a table's cell. ``share``: of its full length, in [0, 1]; ``tick``: a place on it."""
    width = 100 * min(max(share, 0.0), 1.0)
    mark = (
        "" if tick is None else Markup('<rect class="tick" x="{}" width="2" height="8"/>').format(f"{100 * tick:.2f}")
    )
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect class="rail" width="100" height="8"/><rect class="fill" width="{}" height="8"/>{}</svg>'
    ).format(style, f"{width:.2f}", mark)


def nice_top(value: float) -> float:
    """The end of a scale that has ``value`` on it: a digit times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if step * power >= value * (1 - 1e-9)
    )


def _scale(top: float, *, bottom: float = 0.0, unit: str = "", percent: bool = False) -> Iterator[Markup]:
    floor = _HEIGHT - _BOTTOM
    for part in (0.0, 0.5, 1.0):
        y, value = floor - part * (floor - _TOP), bottom + part * (top - bottom)
        if not (percent or unit or value.is_integer()):
            continue  # there is no half device
        yield _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid")
        text = f"{value:.0%}" if percent else number(float(value)) + (unit if part == 1.0 else "")
        yield _text(_LEFT - 5, y + 3, text, "tick end")


def _svg(parts: Sequence[Markup], said: str, style: str = "") -> Markup:
    head = Markup('<svg class="chart {}" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">')
    return head.format(style, _WIDTH, _HEIGHT, said) + Markup("").join(parts) + Markup("</svg>")


def _box(x: float, y: float, width: float, height: float, style: str, inside: Markup) -> Markup:
    places = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return Markup(f'<rect class="{escape(style)}" {places}>') + inside + Markup("</rect>")


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return Markup(f'<path class="{escape(style)}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')


def _dot(x: float, y: float, title: str, style: str) -> Markup:
    head = Markup(f'<circle class="{escape(style)}" cx="{x:.1f}" cy="{y:.1f}" r="3">')
    return head + Markup("<title>{}</title></circle>").format(title)


def _text(x: float, y: float, text: str, style: str) -> Markup:
    return Markup(f'<text class="{escape(style)}" x="{x:.1f}" y="{y:.1f}">') + escape(text) + Markup("</text>")

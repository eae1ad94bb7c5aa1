"""Text, JSON and picture of a sustained profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from device_sdk.files.drawing import ACCENT, INK, SOFT, Drawing, Line, Shape, Text
from device_sdk.profiling.sustained import Outcome, SustainedProfile

WORDS: dict[Outcome, str] = {
    "steady": "steady",
    "throttled": "the device throttled itself",
    "load": "other processes took its cores",
    "power_mode": "its power mode changed",
    "home": "one provider became slower",
    "unknown": "slower without a reason that the system tells",
}
_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "01234567"
_COLUMNS = 60
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 200, 60, 40  # pixels; the last two: to the left of and above the curve


def sustained_summary(found: SustainedProfile) -> dict[str, Any]:
    """The whole result as JSON."""
    return dict(msgspec.to_builtins(found))


def sustained_lines(found: SustainedProfile, *, encoding: str = "utf-8") -> Iterator[str]:
    """Lines for a terminal; levels of the sparkline are digits where ``encoding`` has no blocks."""
    first, last = found.first, found.last
    ratio = f"{found.sustained_over_first:.2f} ×"
    yield (
        f"sustained for {found.seconds:g} s with {found.plan}: {last.median_ms:.3f} ms in the last "
        f"{last.seconds:.3g} s, {ratio} the first {first.seconds:.3g} s"
    )
    yield (
        f"  mean {first.mean_ms:.3f} ms, p95 {first.p95_ms:.3f} ms at first; {last.mean_ms:.3f} ms and "
        f"{last.p95_ms:.3f} ms at last; {_outcome(found)}"
    )
    if found.samples:
        yield f"  {sparkline([one.median_ms for one in found.samples], encoding=encoding)}"
    heat = [f"{one.zones[0].name} {one.zones[0].temperature_c:.0f} °C" for one in (first, last) if one.zones]
    if heat:
        trip_c = last.zones[0].trip_c if last.zones else None
        yield f"  hottest: {' to '.join(heat)}" + ("" if trip_c is None else f", slowed down from {trip_c:.0f} °C on")


def _outcome(found: SustainedProfile) -> str:
    if found.outcome == "steady":
        return WORDS["steady"]
    since = "not settled yet" if found.settled_s is None else f"settled after {found.settled_s:.0f} s"
    words = WORDS[found.outcome]
    if found.outcome == "unknown" and found.last.mean_ms < found.first.mean_ms:
        words = "faster without a reason that the system tells"
    return f"{words}; {since}"


def sparkline(values: Sequence[float], *, encoding: str = "utf-8") -> str:
    """``values``, above 0, as one line of levels, each a median of neighbours where there are more than 60."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(len(values), _COLUMNS))
    medians = [float(np.median(part)) for part in parts]
    low, high = min(medians), max(medians)
    levels = _LEVELS if _has_blocks(encoding) else _PLAIN_LEVELS
    step = (high - low) / (len(levels) - 1)
    return "".join(levels[round((one - low) / step) if step > 0 else 0] for one in medians)


def _has_blocks(encoding: str) -> bool:
    try:
        _LEVELS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sustained_drawing(found: SustainedProfile) -> Drawing:
    """Latency by second, from 0 ms on, with the median of the first stage."""
    most_ms = 1.1 * max((one.median_ms for one in found.samples), default=found.last.median_ms)

    def y(latency_ms: float) -> float:
        return _TOP + _HEIGHT * (1 - latency_ms / most_ms)

    points = tuple((_LEFT + _WIDTH * one.at_s / found.seconds, y(one.median_ms)) for one in found.samples)
    first_y, right, bottom = y(found.first.median_ms), float(_LEFT + _WIDTH), float(_TOP + _HEIGHT)
    shapes: list[Shape] = [
        Text(
            12, 20, f"Latency over {found.seconds:g} s, {found.sustained_over_first:.2f} × at last; {_outcome(found)}"
        ),
        Line(((_LEFT, bottom), (right, bottom)), INK),
        Line(((_LEFT, first_y), (right, first_y)), SOFT),
        Text(4, first_y + 4, f"{found.first.median_ms:.3g} ms"),
        Text(right - 60, bottom + 16, f"{found.seconds:g} s"),
    ]
    if len(points) > 1:
        shapes.append(Line(points, ACCENT))
    return Drawing(_LEFT + _WIDTH + 20, _TOP + _HEIGHT + 28, tuple(shapes))

"""Figures as people read them: three digits, a unit where there are several, times in UTC. Pure."""

from __future__ import annotations

from datetime import datetime

MOST_TEXT = 400  # characters; longer texts, such as paths of hundreds of blocks, are truncated
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60))


def number(value: float) -> str:
    """A number with three digits; all digits of whole ones."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def milliseconds(value_ms: float) -> str:
    """A latency, so that columns line up: tenths from one millisecond on, else two digits."""
    return f"{value_ms:,.1f}" if value_ms >= 1 else f"{value_ms:.2g}"


def share(value: float) -> str:
    """A share in [0, 1] as per cent."""
    percent = 100 * value
    return "0%" if percent == 0 else "<1%" if percent < 1 else f"{percent:.0f}%"


def accuracy(value: float) -> str:
    """A share in [0, 1] as per cent, to a tenth."""
    return f"{100 * value:.1f}%"


def size(value_bytes: int) -> str:
    """A number of bytes."""
    for unit, factor in _UNITS:
        if value_bytes >= factor:
            return f"{value_bytes / factor:.3g} {unit}"
    return f"{value_bytes} B"


def moment(time: str) -> str:
    """A time, to the second."""
    return time[:19].replace("T", " ")


def ago(time: str, now: datetime) -> str:
    """Time since ``time``, roughly."""
    seconds = (now - datetime.fromisoformat(time)).total_seconds()
    for unit, length in _SPANS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "now"


def short(text: str) -> str:
    """A text that is not longer than a page bears."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def digest(text: str) -> str:
    """The beginning of a digest."""
    return f"{text[:12]}…" if len(text) > 12 else text

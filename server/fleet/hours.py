"""Hours at which a device was seen, over its budget, or failed; a day's are the bits of a number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from server.fleet.device_state import Seen, kinds_of

SEEN = "seen"
KEPT_DAYS = 90
HOUR, DAY = "hour", "day"

DayKind = tuple[str, str]  # YYYY-MM-DD and a kind
Hours = Mapping[DayKind, int]
Period = tuple[str, str, str]  # unit, period and kind


def first_day(now: datetime) -> str:
    """The first day that is kept."""
    return (now - timedelta(days=KEPT_DAYS)).date().isoformat()


def hours_of(lines: Iterable[Seen], *, since: str) -> dict[DayKind, int]:
    """The hours of some lines from the day ``since`` on: seen when they were received, the rest when it happened."""
    found: dict[DayKind, int] = {}
    for seen in lines:
        times = [(seen.received, SEEN), *((seen.time, kind) for kind in kinds_of(seen.line.event))]
        for time, kind in times:
            day, bit = time[:10], 1 << int(time[11:13])
            if day >= since:
                found[day, kind] = found.get((day, kind), 0) | bit
    return found


def newly(before: Hours, found: Hours) -> tuple[dict[DayKind, int], list[Period]]:
    """Changes of a device's days, and the periods in which it counts for the first time, in the order of keys."""
    days: dict[DayKind, int] = {}
    periods: list[Period] = []
    for (day, kind), hours in sorted(found.items()):
        known = before.get((day, kind), 0)
        fresh = hours & ~known
        if not fresh:
            continue
        days[day, kind] = known | hours
        periods += [(HOUR, f"{day}T{hour:02d}", kind) for hour in range(24) if fresh >> hour & 1]
        if not known:
            periods.append((DAY, day, kind))
    return days, sorted(periods)

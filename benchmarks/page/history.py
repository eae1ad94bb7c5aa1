"""Made-up histories of devices, with the state that a server keeps of each: as if every upload had come by itself.

Most lines of an upload are measurements, which change no state but the latest values: of these only the last one is
folded, and all are counted. Everything else is folded by the server's own functions. A test sends the same uploads to
a server and compares all rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from device_sdk.logs.adaptation_log import (
    SCHEMA_VERSION,
    Adapted,
    Delivered,
    Escalating,
    Event,
    LogLine,
    Opened,
    PlanChosen,
    Profiled,
    SwitchFailed,
)
from server.fleet.device_state import DeviceState, Seen
from server.fleet.hours import DayKind, Period, first_day, hours_of, newly
from server.rollouts.signals import values_of
from server.rollouts.store import Known

UPLOADS = 20  # of a device, one a day
_CHOICES = 6  # plans chosen in each
_LEAST_LINES = 2 * _CHOICES + 3
_SILENT, _FAILING, _TIGHT = 0.05, 0.06, 0.15  # shares: of devices that stopped, of uploads, of plans over budget
_ASKING = 0.3  # of plans
_SPAN = timedelta(hours=3)  # of an upload's lines
_TIME = "0000-00-00T00:00:00.000+00:00"  # in the place of a time
_FAILURES: tuple[Event, ...] = (
    SwitchFailed("o0 m1-3", "no memory"),
    Escalating(answering=False, failure="no route to the server"),
    Delivered("kept", 1, 0, 0, 0, "the server is away"),
)


@dataclass(frozen=True)
class Upload:
    """Lines that come at once. ``received``: by the server's clock; ``folded``: those that change more than a count."""

    received: datetime
    lines: Sequence[tuple[str, bytes]]  # time and encoded line
    events: Sequence[str]
    folded: Sequence[LogLine]


@dataclass
class History:
    """State, hours and version that a server keeps of a device after some uploads."""

    device: str
    versions: dict[str, int]  # of the bundle that is served, by digest
    state: DeviceState | None = None
    hours: dict[DayKind, int] = field(default_factory=dict)
    known: Known = field(default_factory=Known)

    def take(self, upload: Upload) -> None:
        """Count an upload."""
        received = _moment(upload.received)
        state = self.state or DeviceState(self.device, received, received)
        seen = [Seen(line.time, received, line) for line in upload.folded]
        for one in seen:
            state = state.after(one)
        others = len(upload.lines) - len(upload.folded)
        self.state = replace(state, lines=state.lines + others)
        for key, hours in hours_of(seen, since=first_day(upload.received)).items():
            self.hours[key] = self.hours.get(key, 0) | hours
        self._know(upload)

    def periods(self) -> list[Period]:
        """The periods in which the device counts."""
        return newly({}, self.hours)[1]

    def _know(self, upload: Upload) -> None:
        version, measured = self.known.version, dict(self.known.measured)
        for line in upload.folded:
            here = self.versions[line.bundle]
            if here != version:
                version, measured = here, {}
            measured.update(values_of(line.event))
        self.known = Known("", version, measured, upload.received.date().isoformat())


@dataclass(frozen=True)
class Drawn:
    """A device whose uploads are drawn from ``number`` alone. ``digests``: of the versions that it runs, by age."""

    number: int
    digests: Sequence[str]
    end: datetime

    @property
    def name(self) -> str:
        """The name of the device."""
        return f"device-{self.number:06d}"

    def uploads(self, lines: int) -> Iterator[Upload]:
        """Its uploads with so many lines each, the oldest first."""
        draw = random.Random(self.number)
        stopped = UPLOADS - draw.randrange(1, UPLOADS) if draw.random() < _SILENT else UPLOADS
        budget_ms = round(draw.lognormvariate(2.0, 0.5), 3)
        offset = timedelta(seconds=draw.randrange(86_400))
        for day in range(stopped):
            received = self.end - timedelta(days=UPLOADS - day - 1) - offset
            digest = self.digests[min(len(self.digests) - 1, day * len(self.digests) // UPLOADS)]
            yield _upload(draw, received, digest, budget_ms, max(lines, _LEAST_LINES))


def _upload(draw: random.Random, received: datetime, digest: str, budget_ms: float, lines: int) -> Upload:
    """One upload: a start, choices of plans among measurements, now and then a failure."""
    measurement = Profiled(budget_ms / 2, 1.0, 0.0, round(draw.random() / 50, 6))
    special: dict[int, Event] = {0: Opened("o0", restored=False), lines - 1: measurement}
    every = (lines - 3) // _CHOICES
    special |= {1 + number * every: _choice(draw, budget_ms) for number in range(_CHOICES)}
    if draw.random() < _FAILING:
        special[lines - 2] = draw.choice(_FAILURES)
    began, step = received - _SPAN, _SPAN / (lines + 1)
    before, after = msgspec.json.encode(_line(_TIME, digest, measurement)).split(_TIME.encode())
    encoded, events, folded = [], [], []
    for number in range(lines):
        time = _moment(began + step * number)
        event = special.get(number)
        if event is None:
            encoded.append((time, before + time.encode() + after))
            events.append("profiled")
        else:
            folded.append(_line(time, digest, event))
            encoded.append((time, msgspec.json.encode(folded[-1])))
            events.append(str(event.__struct_config__.tag))
    return Upload(received, encoded, events, folded)


def _line(time: str, digest: str, event: Event) -> LogLine:
    return LogLine(SCHEMA_VERSION, time, digest, "onnxruntime", event)


def _choice(draw: random.Random, budget_ms: float) -> Event:
    """A plan that was chosen; some are over their budget, some ask a server."""
    latency_ms = round(budget_ms * draw.uniform(0.3, 1.0) * (1.5 if draw.random() < _TIGHT else 1.0), 4)
    if draw.random() < _ASKING:
        share = round(draw.random(), 3)
        return PlanChosen(
            plan_kind="escalate",
            subnet="o0 m1-3",
            optimise="accuracy",
            limits={"latency_ms": budget_ms},
            considered=97,
            samples=112,
            accuracy=0.95,
            latency_ms=latency_ms,
            energy_mj=None,
            bytes_sent=400.0,
            share_early=0.2,
            share_asked=share,
            share_abstained=0.0,
            notes=(),
        )
    return Adapted(budget_ms, None, "o0 m1-3", latency_ms, latency_ms, 100_000, 0.9, 0.89, 40, 5, 1.5, "exhausted")


def _moment(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")

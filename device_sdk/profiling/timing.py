"""Timing under load: rounds, ratios and percentiles that bear a busy device, and the device's condition."""

from __future__ import annotations

import contextlib
import math
import platform
import re
import resource
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from device_sdk.errors import MeasurementError
from device_sdk.machine import usable_cores

_ROOT = Path("/")
_CLASS = "sys/class/thermal"
_FAN = re.compile(r"fan", re.IGNORECASE)
_RANGE_C = (-40.0, 150.0)  # sensors of switched-off parts state values far outside


@dataclass(frozen=True)
class Thermal:
    """``hottest_c``: of all zones, None without a sensor; ``held_back``: the cooling devices that limit a processor."""

    hottest_c: float | None
    held_back: tuple[str, ...]


def read_thermal(root: Path = _ROOT) -> Thermal:
    """The state now, read below ``root``."""
    temperatures_c = [value for value in _temperatures_c(root) if _RANGE_C[0] < value < _RANGE_C[1]]
    return Thermal(max(temperatures_c, default=None), tuple(sorted(set(_limiting(root)))))


def _temperatures_c(root: Path) -> Iterator[float]:
    for zone in (root / _CLASS).glob("thermal_zone*"):
        value = _number(zone / "temp")
        if value is not None:
            yield value / 1000


def _limiting(root: Path) -> Iterator[str]:
    for device in (root / _CLASS).glob("cooling_device*"):
        state = _number(device / "cur_state")
        kind = _text(device / "type")
        if state and not _FAN.search(kind):
            yield kind or device.name


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""


UNKNOWN = "unknown"

# JetPack stores the current mode in one of these, as ``pmode:0002 fmode:quiet``.
_NVPMODEL_STATUS = ("var/lib/nvpmodel/status", "etc/nvpmodel/nvpmodel.status")
_NVPMODEL_NAMES = "etc/nvpmodel.conf"


class Conditions(msgspec.Struct, frozen=True):
    """Conditions that latencies depend on besides bundle, runtime and batch. A profile is valid for one set of them."""

    device: str
    power_mode: str
    driver: str


def current_conditions(root: Path = _ROOT) -> Conditions:
    """The conditions now, read below ``root``."""
    return Conditions(device_identity(root), power_mode(root), driver(root))


def device_identity(root: Path = _ROOT) -> str:
    """Processor or board, number of usable cores and system. Contains no host or user name."""
    found = re.search(r"model name\s*:\s*(.+)", _text_of(root / "proc/cpuinfo"))
    # Jetson and Raspberry Pi: cpuinfo has no model name
    board = _text_of(root / "proc/device-tree/model").strip("\0 \n")
    model = found[1].strip() if found else board or "unknown processor"
    return f"{model}, {usable_cores(root)} cores, {platform.system()} {platform.machine()}"


def power_mode(root: Path = _ROOT) -> str:
    """The power mode: a Jetson's nvpmodel and the governors of the processors, or ``unknown``.

    For example ``nvpmodel 15W, governor schedutil``.
    """
    return ", ".join(part for part in (_nvpmodel(root), _governors(root)) if part) or UNKNOWN


def driver(root: Path = _ROOT) -> str:
    """The version of the graphics driver, for example ``nvidia 550.54.14``, or ``none``."""
    version = _text_of(root / "sys/module/nvidia/version").strip()
    return f"nvidia {version}" if version else "none"


def _nvpmodel(root: Path) -> str:
    status = next(filter(None, (_text_of(root / name) for name in _NVPMODEL_STATUS)), "")
    found = re.search(r"pmode:0*(\d+)", status)
    if found is None:
        return ""
    named = re.search(rf"POWER_MODEL\s+ID={found[1]}\s+NAME=(\S+)", _text_of(root / _NVPMODEL_NAMES))
    return f"nvpmodel {named[1] if named else found[1]}"


def _governors(root: Path) -> str:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({text for file in files if (text := _text_of(file).strip())})
    return "governor " + "+".join(found) if found else ""


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text()
    return ""


NANOSECONDS_PER_MS = 1_000_000

Clock = Callable[[], int]  # nanoseconds
Counter = Callable[[], int]

_LEAST_UNDISTURBED = 3  # calls; with fewer, the fastest of all are used
_FASTEST = 0.1  # share of all calls
_LEAST_VALID = 0.5  # minimum share of timed calls with a duration above zero, so that the median is above zero
_CHECK_EVERY = 5  # rounds
_ERROR_PER_QUARTILES = 0.93  # standard error of a median = 0.93 · (p75 − p25) / √runs, for a normal distribution
_SETTLED_SHARE = 0.9  # share of the calls whose median must have the requested precision
_LEAST_PAIRS = 5  # rounds in which neither call was disturbed; with fewer, medians are compared
_SESSION_ERROR = 0.005  # relative; two sessions of one model differ by up to 1.3 %


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Early stopping of rounds.

    ``precision``: stop after ``rounds`` once 90 % of the medians have a relative standard error below this;
    ``limit_s``: stop after this time, but not before ``least`` rounds (default: ``rounds``).
    """

    rounds: int
    precision: float
    limit_s: float
    least: int | None = None

    def shared_by(self, count: int) -> Patience:
        """The patience of each of ``count`` groups that share the time limit."""
        return msgspec.structs.replace(self, limit_s=self.limit_s / count)


def interruptions() -> int:
    """Involuntary context switches of this thread so far; 0 where the system does not report them."""
    return resource.getrusage(_WHO).ru_nivcsw if _WHO is not None else 0


def waited_for_processor_ns() -> int:
    """Time that this thread was ready to run but had no processor; 0 where the system does not report it."""
    try:
        with open(_SCHEDULED, "rb", buffering=0) as file:
            return int(file.read(64).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _never() -> int:
    return 0


_WHO: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
_SCHEDULED = "/proc/thread-self/schedstat"  # Linux: time on a processor, time waiting for one, in ns; time slices


class _Samples:
    """The durations of one call, and which of them were disturbed."""

    def __init__(self) -> None:
        self._undisturbed_ns: list[int] = []
        self._all_ns: list[int] = []
        self._by_round: list[int | None] = []  # None: disturbed, or the clock was set back during the call

    def add(self, elapsed_ns: int, waited_ns: int, *, interrupted: bool) -> None:
        """``waited_ns``: part of ``elapsed_ns`` without a processor; 0 if unknown."""
        if elapsed_ns < 0:
            self._by_round.append(None)
            return
        self._all_ns.append(elapsed_ns)
        disturbed = interrupted if waited_ns == 0 else waited_ns >= elapsed_ns
        if not disturbed:
            self._undisturbed_ns.append(elapsed_ns - waited_ns)
        self._by_round.append(None if disturbed or elapsed_ns == 0 else elapsed_ns - waited_ns)

    @property
    def counting_ns(self) -> list[int]:
        """The durations that medians are computed from."""
        if len(self._undisturbed_ns) >= min(_LEAST_UNDISTURBED, len(self._all_ns)):
            return self._undisturbed_ns
        return sorted(self._all_ns)[: max(_LEAST_UNDISTURBED, round(_FASTEST * len(self._all_ns)))]

    def relative_error(self) -> float:
        """The relative standard error of the median."""
        if not self._all_ns:
            return math.inf
        low, median, high = np.percentile(self.counting_ns, [25, 50, 75])
        error = _ERROR_PER_QUARTILES * (high - low) / len(self.counting_ns) ** 0.5
        return float(error / median) if median > 0 else math.inf

    def ratio_to(self, reference: _Samples) -> Ratio:
        """The ratio of this call's latency to the reference's, from pairs of one round: drift of the device cancels."""
        rounds = zip(self._by_round, reference._by_round, strict=True)
        logs = [math.log(own / other) for own, other in rounds if own and other]
        if len(logs) >= _LEAST_PAIRS:
            low, median, high = np.percentile(logs, [25, 50, 75])
            error = _ERROR_PER_QUARTILES * float(high - low) / len(logs) ** 0.5
            return Ratio(math.exp(median), math.hypot(error, _SESSION_ERROR))
        medians = [float(np.median(one.counting_ns)) for one in (self, reference)]
        error = math.hypot(self.relative_error(), reference.relative_error(), _SESSION_ERROR)
        return Ratio(medians[0] / medians[1], error) if min(medians) > 0 else Ratio(1.0, math.inf)

    def latency(self, *, wanted: int, reference: _Samples | None = None, percentile: float | None = None) -> Latency:
        valid = sum(1 for elapsed_ns in self._all_ns if elapsed_ns > 0)
        if valid <= _LEAST_VALID * wanted:
            raise MeasurementError(
                f"only {valid} of {wanted} timed calls took any time: the clock stood still or was set back",
                hint="measure again while nothing sets this device's clock",
            )
        quartiles = np.percentile(np.asarray(self.counting_ns, dtype=np.float64) / NANOSECONDS_PER_MS, [25, 50, 75])
        p25_ms, median_ms, p75_ms = (float(value) for value in quartiles)
        p95_ms = max(p75_ms, float(np.percentile(self._all_ns, 95)) / NANOSECONDS_PER_MS)
        other_ms = None
        if percentile is not None:
            other_ms = float(np.percentile(self.counting_ns, percentile)) / NANOSECONDS_PER_MS
        return Latency(
            median_ms=median_ms,
            p95_ms=p95_ms,
            p25_ms=p25_ms,
            p75_ms=p75_ms,
            runs=len(self._all_ns),
            ratio=None if reference is None else self.ratio_to(reference),
            other_ms=other_ms,
            elapsed_ms=float(np.median(self._all_ns)) / NANOSECONDS_PER_MS,
        )


class Ratio(msgspec.Struct, frozen=True):
    """A latency relative to another one's. ``relative_error``: standard error of its logarithm; infinite if unknown."""

    value: float
    relative_error: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one call, over ``runs`` timed calls.

    Median and quartiles are of undisturbed calls: without the time that they waited for a processor. ``p95_ms`` and
    ``elapsed_ms``, a median, are of all calls and include it. ``ratio``: to the reference's, where the calls were timed
    in turns with one. ``other_ms``: at another percentile of undisturbed calls, where one was wanted.
    """

    median_ms: float
    p95_ms: float
    p25_ms: float
    p75_ms: float
    runs: int
    ratio: Ratio | None = None
    other_ms: float | None = None
    elapsed_ms: float | None = None

    @property
    def at_percentile_ms(self) -> float:
        """The latency at the wanted percentile, the median by default."""
        return self.median_ms if self.other_ms is None else self.other_ms


def measure(
    call: Callable[[], object],
    *,
    runs: int,
    warmup: int,
    clock: Clock = time.perf_counter_ns,
) -> Latency:
    """Time ``runs`` calls after ``warmup`` untimed ones. The call must block until its work is done.

    Raises:
        ValueError: ``runs`` is below 1 or ``warmup`` is negative.
    """
    return measure_interleaved({"": call}, rounds=runs, warmup=warmup, clock=clock)[""]


def measure_interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int,
    patience: Patience | None = None,
    reference: str | None = None,
    pause_s: float = 0.0,
    percentile: float | None = None,
    on_round: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter_ns,
    interruptions: Counter = interruptions,
    waited_ns: Counter | None = None,
    waiting: Collection[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Latency]:
    """Time competitors in turns: each has one turn per round, in an order that changes every round.

    The order rotates, so that each call starts equally often, and every second rotation is reversed, so that no call
    always follows the same other one. With several calls, each is called twice per turn and the second call is timed.
    With ``pause_s`` each call is made once per turn instead, that long after the one before, as an application that
    calls now and then does. With ``patience`` fewer than ``rounds`` may suffice. ``reference``: the call that the
    others' ratios refer to. ``percentile``: another one besides the median. ``waited_ns``: time that this thread waited
    for a processor so far; by default the system's count, if ``clock`` is the system's too. ``waiting``: calls that
    run on several threads. They wait for their own threads, so that all of their time counts. ``on_round`` is called
    after each round, warm-up included.

    Raises:
        ValueError: ``rounds`` is below 1 or ``warmup`` is negative.
        MeasurementError: the clock stood still, or was set back more often than not.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"needs at least 1 round and no negative warm-up, got {rounds} and {warmup}")
    if waited_ns is None:
        waited_ns = waited_for_processor_ns if clock is time.perf_counter_ns else _never
    samples = {name: _Samples() for name in calls}
    start_ns, timed_rounds = clock(), 0
    for index in range(-warmup, rounds):
        if patience is not None and _is_enough(index, patience, samples, elapsed_s=(clock() - start_ns) / 1e9):
            break
        for name in _order(list(calls), index):
            call = calls[name]
            if pause_s > 0 and index >= 0:
                sleep(pause_s)
            elif len(calls) > 1 and index >= 0:
                call()
            switches, waited_before_ns, started_ns = interruptions(), waited_ns(), clock()
            call()
            elapsed_ns = clock() - started_ns
            if index >= 0 and name in waiting:
                samples[name].add(elapsed_ns, 0, interrupted=False)
            elif index >= 0:
                waited_now_ns = waited_ns()
                samples[name].add(elapsed_ns, waited_now_ns - waited_before_ns, interrupted=interruptions() != switches)
        timed_rounds += index >= 0
        on_round()
    pairs = None if reference is None else samples[reference]
    return {
        name: durations.latency(wanted=timed_rounds, reference=pairs, percentile=percentile)
        for name, durations in samples.items()
    }


def _is_enough(index: int, patience: Patience, samples: Mapping[str, _Samples], *, elapsed_s: float) -> bool:
    least = patience.rounds if patience.least is None else patience.least
    if index >= max(least, 1) and elapsed_s >= patience.limit_s:
        return True
    if index < max(patience.rounds, 1) or index % _CHECK_EVERY or not samples:
        return False
    errors = sorted(durations.relative_error() for durations in samples.values())
    return errors[int(_SETTLED_SHARE * (len(errors) - 1))] <= patience.precision


def _order(names: Sequence[str], index: int) -> list[str]:
    turn, start = divmod(index, max(len(names), 1))
    rotated = [*names[start:], *names[:start]]
    return rotated[::-1] if turn % 2 else rotated

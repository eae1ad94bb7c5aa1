"""Log lines of a device as signals about a version: each counts once per device, and is bounded. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from device_sdk.logs import adaptation_log as log
from server.rollouts.evidence import Counts

Flag = Literal["self_test", "refused", "fallback", "out_of_reach"]
Value = Literal["latency", "model_ms", "drift", "accuracy"]
FLAGS: tuple[Flag, ...] = ("self_test", "refused", "fallback", "out_of_reach")
VALUES: tuple[Value, ...] = ("latency", "model_ms", "drift", "accuracy")
PAIRS = "_change"  # ends the signal of changes on the same device
ALL = ""  # the tag of all devices

_NOT_THE_VERSION = ("transfer", "storage")  # reasons of a refusal that say nothing about what was refused
_FACTOR_MAX = math.log(4.0)  # more than four times as slow, or as fast, counts as four times


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reports of a device about ``version`` in a rollout.

    ``tried``: it has opened that version, or refused it. ``values``: the latest of each kind, ``before``: those of the
    version that it had before. Latencies are logarithms of ratios: to the budget, of the full model in ms, and to what
    was expected.
    """

    version: int
    stage: int | None = None
    tags: dict[str, str] = {}
    tried: bool = False
    installed: int | None = None
    flags: tuple[str, ...] = ()
    values: dict[str, float] = {}
    before: dict[str, float] = {}

    @property
    def has_refused(self) -> bool:
        """True if the version does not work on this device."""
        return "self_test" in self.flags or "refused" in self.flags

    def with_event(self, event: object) -> Member:
        """After an event of the version."""
        flag = flag_of(event)
        flags = self.flags if flag is None or flag in self.flags else (*self.flags, flag)
        return msgspec.structs.replace(self, tried=True, flags=flags, values={**self.values, **values_of(event)})

    def with_refusal(self, reason: str) -> Member:
        """After it refused the version."""
        if reason in _NOT_THE_VERSION:
            return self
        flag = "self_test" if reason == "self_test" else "refused"
        flags = self.flags if flag in self.flags else (*self.flags, flag)
        return msgspec.structs.replace(self, tried=True, flags=flags)


def flag_of(event: object) -> Flag | None:
    """The bad signal that an event is."""
    if isinstance(event, log.SwitchFailed):
        return "fallback"
    if isinstance(event, (log.Escalating, log.Splitting)) and event.failure is not None:
        return "fallback"
    if isinstance(event, (log.OutOfReach, log.Infeasible)):
        return "out_of_reach"
    return None


def values_of(event: object) -> dict[str, float]:
    """The measurements in an event, within bounds."""
    found: dict[str, float | None] = {}
    match event:
        case log.Adapted():
            found["latency"] = _log_ratio(event.measured_ms, event.budget_latency_ms)
            found["accuracy"] = event.accuracy_holdout
        case log.PlanChosen():
            found["latency"] = _log_ratio(event.latency_ms, event.limits.get("latency_ms"))
            found["accuracy"] = event.accuracy
        case log.Calibrated():
            found["accuracy"] = event.accuracy
        case log.Profiled():
            found["model_ms"] = _log_ratio(event.original_ms, 1.0)
        case log.Switched():
            found["drift"] = _log_ratio(event.service_ms, event.expected_ms)
    bounded = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
    if "accuracy" in bounded:
        bounded["accuracy"] = min(1.0, max(0.0, bounded["accuracy"]))
    return bounded


def _log_ratio(value: float | None, of: float | None) -> float | None:
    return math.log(value / of) if value is not None and of is not None and 0 < value < 1e12 and 0 < of < 1e12 else None


Key = tuple[int, str, str]  # version, tag as NAME=VALUE, signal


def counted(member: Member | None) -> dict[Key, Counts]:
    """The part of a device in the counts: in those of all devices, and of each of its tags."""
    if member is None or not member.tried:
        return {}
    signals = {flag: Counts(1, int(flag in member.flags)) for flag in FLAGS}
    for name, value in member.values.items():
        within = max(-20.0, min(20.0, value))
        signals[name] = Counts(1, 0, within, within**2)  # type: ignore[index]
        if name in member.before:
            change = max(-_FACTOR_MAX, min(_FACTOR_MAX, value - member.before[name]))
            signals[name + PAIRS] = Counts(1, 0, change, change**2)  # type: ignore[index]
    groups = [ALL, *(f"{name}={value}" for name, value in sorted(member.tags.items()))]
    return {(member.version, group, signal): counts for group in groups for signal, counts in signals.items()}


def difference(before: Mapping[Key, Counts], after: Mapping[Key, Counts]) -> dict[Key, Counts]:
    """The changes of the counts when a device's part changes, in the order of keys; nothing where it is equal."""
    none = Counts()
    keys: Iterable[Key] = sorted(before.keys() | after.keys())
    changed = {}
    for key in keys:
        old, new = before.get(key, none), after.get(key, none)
        if old != new:
            changed[key] = Counts(
                new.devices - old.devices,
                new.events - old.events,
                new.total - old.total,
                new.squares - old.squares,
            )
    return changed

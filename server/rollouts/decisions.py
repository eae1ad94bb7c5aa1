"""The next step of a rollout, and the version that a device gets. Pure: it takes state, counts and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from device_sdk.delivery.assignment import Assignment
from server.rollouts.cohorts import is_in_second_half, stage_of
from server.rollouts.evidence import (
    Counts,
    Difference,
    paired,
    rise_evidence,
    share_evidence,
    share_interval,
    unpaired,
)
from server.rollouts.plan import Limits, Plan
from server.rollouts.signals import ALL, FLAGS, PAIRS, VALUES, Key, Member

State = Literal["planned", "running", "paused", "reversing", "reversed", "done"]
ACTIVE: tuple[State, ...] = ("planned", "running", "paused", "reversing")
OPERATOR = "operator"

LIARS = 1  # so many devices alone never halt a rollout
MEASURED_DEVICES = 10  # that a mean needs before it counts
_TAGS_AT_LEAST = 4  # the false alarms of tags are divided by at least so many
_WEIGHTS = {  # shares of the false alarms that are spent on each signal
    "self_test": 0.25,
    "refused": 0.05,
    "fallback": 0.05,
    "out_of_reach": 0.05,
    "latency": 0.2,
    "model_ms": 0.2,
    "drift": 0.1,
    "accuracy": 0.1,
}


@dataclass(frozen=True)
class Rollout:
    """A rollout as it stands. ``number``: its id; ``baseline``: the version that it replaces; ``since``: of the stage.

    ``why``: the reason of its state; ``revision``: rises with every change.
    """

    number: int
    bundle: str
    version: int
    baseline: int
    plan: Plan
    salt: str
    state: State
    stage: int
    since: datetime
    started: datetime
    why: str = ""
    revision: int = 0

    @property
    def control(self) -> int:
        """The version that it is compared with."""
        return self.baseline if self.plan.against is None else self.plan.against


@dataclass(frozen=True)
class Step:
    """A change of a rollout."""

    state: State
    stage: int
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """A signal of a group of devices. ``value``: a share, or a change against the old version; ``limit``: of it.

    ``low``, ``high``: 95 % interval; ``evidence``: an e-value, which halts at ``needed``. ``events``: devices, or None.
    """

    signal: str
    tag: str
    devices: int
    events: int | None
    value: float
    low: float
    high: float
    limit: float
    evidence: float
    needed: float

    @property
    def halts(self) -> bool:
        """True if the version is surely beyond the limit, by more devices than may lie."""
        return self.evidence >= self.needed and (self.events is None or self.events > LIARS)

    @property
    def is_doubtful(self) -> bool:
        """True if it seems to be beyond the limit, so that no further stage begins by itself."""
        if self.events is None:
            return self.low > self.limit
        return self.value > self.limit and self.events > LIARS

    def text(self) -> str:
        """One line for people."""
        where = f" with {self.tag}" if self.tag else ""
        if self.events is not None:
            return f"{self.signal}: {self.events} of {self.devices} devices{where}, the limit is {self.limit:.2%}"
        found = f"{self.value:+.1%} ({self.low:+.1%} to {self.high:+.1%})"
        return f"{self.signal}: {found} on {self.devices} devices{where}, the limit is {self.limit:+.1%}"


def findings(rollout: Rollout, counts: Mapping[Key, Counts]) -> list[Finding]:
    """All signals of the new version that can be judged, of all devices and of every tag that has enough of them."""
    tried = {tag: one.devices for (version, tag, signal), one in counts.items() if _is_tried(rollout, version, signal)}
    tags = sorted(tag for tag, devices in tried.items() if tag != ALL and devices >= MEASURED_DEVICES)
    found = []
    for tag in (ALL, *tags):
        spent = rollout.plan.false_alarm / 2 / (1 if tag == ALL else max(_TAGS_AT_LEAST, len(tags)))
        for signal in (*FLAGS, *VALUES):
            one = _finding(rollout, counts, tag, signal, needed=1 / (spent * _WEIGHTS[signal]))
            if one is not None:
                found.append(one)
    return found


def _is_tried(rollout: Rollout, version: int, signal: str) -> bool:
    return version == rollout.version and signal == FLAGS[0]


def _finding(rollout: Rollout, counts: Mapping[Key, Counts], tag: str, signal: str, *, needed: float) -> Finding | None:
    limits, none = rollout.plan.limits, Counts()
    new = counts.get((rollout.version, tag, signal), none)
    old = counts.get((rollout.control, tag, signal), none)
    if signal in FLAGS:
        limit = _share_limit(limits, signal, old)
        if limit is None or not new.devices:
            return None
        low, high = share_interval(new)
        share = new.events / new.devices
        return Finding(
            signal, tag, new.devices, new.events, share, low, high, limit, share_evidence(new, limit), needed
        )
    changes = counts.get((rollout.version, tag, signal + PAIRS), none)
    return _change(limits, signal, tag, changes, new, old, needed=needed)


def _share_limit(limits: Limits, signal: str, old: Counts) -> float | None:
    """The operator's limit, or the old version's share, if that is more: a server may be away for all."""
    limit: float | None = getattr(limits, signal)
    if limit is None or signal in ("self_test", "refused") or old.devices < MEASURED_DEVICES:
        return limit
    return max(limit, share_interval(old)[1])


def _change(
    limits: Limits, signal: str, tag: str, changes: Counts, new: Counts, old: Counts, *, needed: float
) -> Finding | None:
    """The change of a mean: on the same devices if enough were measured on both versions, else between groups."""
    is_accuracy = signal == "accuracy"
    limit = limits.accuracy_drop if is_accuracy else limits.latency_rise
    has_pairs = changes.devices >= MEASURED_DEVICES
    if limit is None or not (has_pairs or min(new.devices, old.devices) >= MEASURED_DEVICES):
        return None
    if signal == "model_ms" and not has_pairs:
        return None  # devices differ too much to compare groups of them
    found = paired(changes) if has_pairs else unpaired(new, old)
    assert found is not None
    worse = Difference(-found.value, found.error, found.devices, found.freedom) if is_accuracy else found
    evidence = rise_evidence(worse, limit if is_accuracy else math.log1p(limit))
    devices = changes.devices if has_pairs else new.devices
    shown = (worse.value, worse.low(), worse.high())
    value, low, high = shown if is_accuracy else tuple(math.expm1(one) for one in shown)
    return Finding(signal, tag, devices, None, value, low, high, limit, evidence, needed)


def next_step(rollout: Rollout, counts: Mapping[Key, Counts], now: datetime, *, on_new: int) -> Step | None:
    """The step that is due, if any. ``on_new``: devices that run the new version as far as they said."""
    if rollout.state == "reversing":
        return Step("reversed", rollout.stage, rollout.why) if on_new == 0 else None
    if rollout.state != "running":
        return None
    found = findings(rollout, counts)
    halting = [one for one in found if one.halts]
    if halting:
        worst = max(halting, key=lambda one: one.evidence / one.needed)
        return halted(rollout, worst.text())
    if not hold_is_over(rollout, now) or _tried(rollout, counts) < rollout.plan.stages[rollout.stage].min_devices:
        return None
    doubtful = [one for one in found if one.is_doubtful]
    if doubtful:
        return Step("paused", rollout.stage, f"not certain yet: {doubtful[0].text()}")
    return _onwards(rollout)


def halted(rollout: Rollout, why: str) -> Step:
    """The step of a rollout that is halted because of ``why``."""
    return reversal(rollout, why) if rollout.plan.on_halt == "reverse" else Step("paused", rollout.stage, why)


def reversal(rollout: Rollout, why: str) -> Step:
    """The step that sends devices back; without a signed rollback those that have the version keep it."""
    if rollout.plan.no_rollback:
        return Step("reversed", rollout.stage, f"{why}; no rollback is signed: devices that have it keep it")
    return Step("reversing", rollout.stage, why)


def hold_is_over(rollout: Rollout, now: datetime) -> bool:
    """True if the stage has lasted as long as it has to."""
    return now >= rollout.since + timedelta(minutes=rollout.plan.stages[rollout.stage].hold_minutes)


def waits_for_approval(rollout: Rollout, now: datetime) -> bool:
    """True if only an operator lets it go on."""
    following = rollout.stage + 1
    stages = rollout.plan.stages
    needs = stages[following].approval == OPERATOR if following < len(stages) else not rollout.plan.ends
    return rollout.state == "running" and needs and hold_is_over(rollout, now)


def approved(rollout: Rollout) -> Step:
    """The step after an operator's approval: the next stage, or the version for all."""
    following = rollout.stage + 1
    return Step("running", following) if following < len(rollout.plan.stages) else Step("done", rollout.stage)


def _onwards(rollout: Rollout) -> Step | None:
    following = rollout.stage + 1
    if following < len(rollout.plan.stages):
        return None if rollout.plan.stages[following].approval == OPERATOR else Step("running", following)
    return Step("done", rollout.stage) if rollout.plan.ends else None


def _tried(rollout: Rollout, counts: Mapping[Key, Counts]) -> int:
    return counts.get((rollout.version, ALL, FLAGS[0]), Counts()).devices


def assign(
    rollout: Rollout, member: Member | None, device: str, tags: Mapping[str, str], *, has: int | None = None
) -> Assignment:
    """The version of a device. ``member``: what is known of it in this rollout; ``has``: its version, if it told one.

    A device above the version that is replaced takes that only by a rollback, also outside all stages.
    """
    kept = None if member is None or member.stage is None else member
    if kept is not None and kept.has_refused:
        return Assignment(rollout.baseline, rollout.number, kept.stage)  # it is there anyway
    if rollout.state == "done":
        return Assignment(rollout.version, rollout.number)
    goes_back = rollout.state in ("reversing", "reversed")
    if goes_back and not rollout.plan.no_rollback:
        return Assignment(rollout.baseline, rollout.number, rollback=True)
    if kept is not None:
        return Assignment(kept.version, rollout.number, kept.stage)
    stage = stage_of(rollout.plan, rollout.salt, device, tags) if rollout.state == "running" else None
    if stage is None or stage > rollout.stage:
        is_above = has is not None and has > rollout.baseline and not rollout.plan.no_rollback
        return Assignment(rollout.baseline, rollout.number, rollback=is_above)
    against = rollout.plan.against
    second = against is not None and is_in_second_half(rollout.salt, device)
    version = against if against is not None and second else rollout.version
    return Assignment(version, rollout.number, stage)

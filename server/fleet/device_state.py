"""The present state of a device, folded from its log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_sdk.logs.adaptation_log import (
    Adapted,
    Calibrated,
    Delivered,
    Escalating,
    Event,
    Infeasible,
    LogLine,
    Opened,
    OutOfReach,
    PlanChosen,
    Refused,
    Resized,
    Searched,
    SplitChosen,
    Splitting,
    Switched,
    SwitchFailed,
)

OVER_BUDGET = "over_budget"
# Kinds of failures, each with its name for people.
FAILURES: Mapping[str, str] = {
    "infeasible": "no plan fits the budget",
    "delivery": "bundle not updated",
    "refused": "new version not used",
    "switch": "plan not loaded",
    "search": "search failed",
    "asking": "server away for hard samples",
    "splitting": "server away for tails",
    "memory": "memory cap not kept",
    "out_of_reach": "too slow for the budget",
}
INITIAL = "initial"  # the kind of a plan that nothing was chosen for yet
_MOST_TEXT = 400  # characters


@dataclass(frozen=True)
class Seen:
    """A line as it was taken: ``time`` of the event, not in the future, and of reception; ISO 8601 in UTC."""

    time: str
    received: str
    line: LogLine


@dataclass(frozen=True)
class DeviceState:
    """The row of a device. Each group of values comes from the newest line that has them, in any order of arrival.

    ``latency_ms``: of the plan in use as it was measured or expected when it was chosen; ``budget_use``: over its
    budget, 1 is the budget. ``share_asked``: of samples that go to a server. Of lines with one time the last wins.
    """

    device: str
    first_seen: str
    last_seen: str
    lines: int = 0
    line_time: str = ""
    bundle: str = ""
    runtime: str = ""
    plan_time: str | None = None
    plan_kind: str | None = None
    latency_ms: float | None = None
    budget_ms: float | None = None
    budget_use: float | None = None
    share_asked: float | None = None
    subnet_time: str | None = None
    subnet: str | None = None
    failure_time: str | None = None
    failure: str | None = None
    failure_text: str | None = None

    def after(self, seen: Seen) -> DeviceState:
        """The state with one more line."""
        state, line, time = self, seen.line, seen.time
        first, last = min(self.first_seen, seen.received), max(self.last_seen, seen.received)
        state = replace(state, lines=self.lines + 1, first_seen=first, last_seen=last)
        if time >= self.line_time:
            state = replace(state, line_time=time, bundle=cut(line.bundle, 64), runtime=cut(line.runtime, 80))
        plan = _plan(line.event)
        if plan is not None and time >= (self.plan_time or ""):
            state = replace(
                state,
                plan_time=time,
                plan_kind=cut(plan.kind, 80),
                latency_ms=plan.latency_ms,
                budget_ms=plan.budget_ms,
                budget_use=budget_use(plan.latency_ms, plan.budget_ms),
                share_asked=plan.share_asked,
            )
        subnet = _subnet(line.event)
        if subnet is not None and time >= (self.subnet_time or ""):
            state = replace(state, subnet_time=time, subnet=cut(subnet, _MOST_TEXT))
        failure = failure_of(line.event)
        if failure is not None and time >= (self.failure_time or ""):
            kind, text = failure
            state = replace(state, failure_time=time, failure=kind, failure_text=cut(text, _MOST_TEXT))
        return state


def latency_and_budget(event: Event) -> tuple[float, float | None] | None:
    """Latency of a chosen plan and its budget, in milliseconds; None if the event tells none."""
    match event:
        case Adapted(measured_ms=measured, budget_latency_ms=budget):
            return measured, budget
        case PlanChosen(latency_ms=float(latency), limits=limits):
            return latency, limits.get("latency_ms")
        case SplitChosen(predicted_ms=predicted):
            return predicted, None
    return None


def budget_use(latency_ms: float | None, budget_ms: float | None) -> float | None:
    """Latency over budget; None without either."""
    return latency_ms / budget_ms if latency_ms is not None and budget_ms is not None and budget_ms > 0 else None


def kinds_of(event: Event) -> tuple[str, ...]:
    """Kinds that an event counts as in its hour: a failure of a kind, or a plan over its budget."""
    failure, times = failure_of(event), latency_and_budget(event)
    use = None if times is None else budget_use(*times)
    over = (OVER_BUDGET,) if use is not None and use > 1 else ()
    return over if failure is None else (failure[0], *over)


def failure_of(event: Event) -> tuple[str, str] | None:
    """Kind and text of a failure; None for any other event."""
    match event:
        case Infeasible(nearest=nearest, nearest_latency_ms=nearest_ms):
            return "infeasible", f"the nearest takes {nearest_ms:.3g} ms: {nearest}"
        case Delivered(how="kept", failure=failure):
            return "delivery", failure or "the last good one was kept"
        case Refused(version=version, reason=reason, failure=failure):
            return "refused", f"version {version}, {reason}: {failure}"
        case SwitchFailed(failure=failure):
            return "switch", failure
        case Searched(failure=str(failure)):
            return "search", failure
        case Escalating(answering=False, failure=failure):
            return "asking", failure or ""
        case Splitting(answering=False, failure=failure):
            return "splitting", failure or ""
        case Resized(failure=str(failure)):
            return "memory", failure
        case OutOfReach(budget_latency_ms=budget_ms, fastest_ms=fastest_ms):
            return "out_of_reach", f"the fastest takes {fastest_ms:.3g} ms, the budget is {budget_ms:.3g} ms"
    return None


def cut(text: str, most: int) -> str:
    """``text`` as a database keeps it: at most so many characters, none of them NUL."""
    plain = text.replace("\0", "")
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


@dataclass(frozen=True)
class _Plan:
    """A plan that was put in use."""

    kind: str
    share_asked: float
    latency_ms: float | None
    budget_ms: float | None


def _plan(event: Event) -> _Plan | None:
    """The plan that an event put in use; None if it did not."""
    match event:
        case Adapted():
            kind, share = "subnet", 0.0
        case PlanChosen(plan_kind=named, share_asked=asked):
            kind, share = named, asked
        case SplitChosen(position=position):
            kind, share = "split" if position is not None else "subnet", 0.0
        case Opened(restored=False):
            kind, share = INITIAL, 0.0
        case _:
            return None
    latency_ms, budget_ms = latency_and_budget(event) or (None, None)
    return _Plan(kind, share, latency_ms, budget_ms)


def _subnet(event: Event) -> str | None:
    """The subnet in use from this event on; None if it names none."""
    known = (Opened, Adapted, Calibrated, PlanChosen, SplitChosen, Switched)
    return event.subnet if isinstance(event, known) else None

"""The adaptation log: every decision about the plan as one JSON line, with no private data in it.

The schema, docs/adaptation_log.schema.json, is generated from these types."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from device_sdk.errors import InfeasibleBudgetError, UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.files.rotated_file import KEPT_FILES, MAX_BYTES, append_line, opened_files
from device_sdk.supernet.cost import PlanCost, Uplink

if TYPE_CHECKING:
    from device_sdk.delivery.download import Delivered as Delivery
    from device_sdk.delivery.refusals import Refusal
    from device_sdk.policies.found import Found
    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.planning.choice import Choice
    from device_sdk.profiling.profile import Profile
    from device_sdk.supernet.goal import Goal, Requirement

SCHEMA_VERSION = 1

_log = logging.getLogger(__name__)


class Opened(msgspec.Struct, frozen=True, tag="opened", tag_field="event"):
    """A bundle was opened; ``subnet`` is its initial subnet.

    ``plans_for``: if no plan is stored for this runtime and its threads, the runtimes that have one. ``homes``: where
    blocks may run, the first one first; none where there is one alone. ``homes_left_out``: those that failed their
    check, with the reason.
    """

    subnet: str
    restored: bool
    plans_for: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    homes_left_out: dict[str, str] = {}


class Profiled(msgspec.Struct, frozen=True, tag="profiled", tag_field="event"):
    """All blocks were measured."""

    original_ms: float
    scale: float
    offset_ms: float
    median_error: float
    nodes_by_provider: dict[str, int] = {}


class Adapted(msgspec.Struct, frozen=True, tag="adapted", tag_field="event"):
    """A search ended and its subnet is in use."""

    budget_latency_ms: float | None
    budget_memory_mb: float | None
    subnet: str
    predicted_ms: float
    measured_ms: float
    predicted_peak_bytes: int
    accuracy_search: float
    accuracy_holdout: float | None
    samples: int
    subnets_evaluated: int
    seconds: float
    stopped: str
    within_budget_probability: float | None = None
    slowdown: float | None = None


class Infeasible(msgspec.Struct, frozen=True, tag="infeasible", tag_field="event"):
    """No subnet fits the budget; the plan in use stays."""

    budget_latency_ms: float | None
    budget_memory_mb: float | None
    nearest: str
    nearest_latency_ms: float


class Delivered(msgspec.Struct, frozen=True, tag="delivered", tag_field="event"):
    """The bundle came from a server: ``downloaded``, ``unchanged``, or ``kept`` (the last good one, and why)."""

    how: str
    version: int
    blobs_fetched: int
    bytes_fetched: int
    resumed: int
    failure: str | None


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="event"):
    """A version from a server is not used here; the line's bundle is the one that is.

    ``digest``: of its manifest, if that came. ``reason``: ``self_test``, ``memory``, ``expired``, ``signature``,
    ``rollback``, ``transfer``, ``storage`` or ``bundle``; ``failure``: in words.
    """

    version: int
    digest: str | None
    reason: str
    failure: str


class ExitsExchanged(msgspec.Struct, frozen=True, tag="exits_exchanged", tag_field="event"):
    """The device holds ``exits`` from now on; ``chosen_by``: ``server``, ``device`` or ``caller``."""

    exits: tuple[str, ...]
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    bytes_fetched: int
    chosen_by: str


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated", tag_field="event"):
    """Exits and the escalation threshold were set for the subnet in use."""

    subnet: str
    exits: tuple[str, ...]
    thresholds: tuple[float, ...]
    escalation_threshold: float | None
    samples: int
    accuracy: float
    accuracy_without_exits: float
    share_early: float
    share_escalated: float
    mean_ms: float | None
    without_exits_ms: float | None


class PlanChosen(msgspec.Struct, frozen=True, tag="plan_chosen", tag_field="event"):
    """A plan was chosen for a requirement among ``considered`` ones; what is expected of it on samples held out.

    ``share_asked_early``: go to the server from an exit; ``saved``: what that spares per sample, by quantity.
    """

    plan_kind: str
    subnet: str
    optimise: str
    limits: dict[str, float]
    considered: int
    samples: int
    accuracy: float | None
    latency_ms: float | None
    energy_mj: float | None
    bytes_sent: float
    share_early: float
    share_asked: float
    share_abstained: float
    notes: tuple[str, ...]
    share_asked_early: float = 0.0
    saved: dict[str, float] = {}


class Escalating(msgspec.Struct, frozen=True, tag="escalating", tag_field="event"):
    """The server for hard samples became available or unavailable; ``failure``: the reason."""

    answering: bool
    failure: str | None


class SplitChosen(msgspec.Struct, frozen=True, tag="split", tag_field="event"):
    """The split of the subnet was decided: the cut point ``position``, or None to run all of it on the device.

    ``on_device_ms``: None where the device holds a head only.
    """

    subnet: str
    position: int | None
    uplink_mbps: float
    predicted_ms: float
    on_device_ms: float | None
    bytes_sent: int


class Splitting(msgspec.Struct, frozen=True, tag="splitting", tag_field="event"):
    """The server for tails became available or unavailable; ``failure``: the reason."""

    answering: bool
    failure: str | None


class Watching(msgspec.Struct, frozen=True, tag="watching", tag_field="event"):
    """Live update started with ``candidates`` subnets; ``fastest_ms`` and ``slowest_ms`` are estimates."""

    budget_latency_ms: float
    budget_memory_mb: float | None
    subnet: str
    candidates: int
    fastest_ms: float
    slowest_ms: float


class Switched(msgspec.Struct, frozen=True, tag="switched", tag_field="event"):
    """Live update exchanged the subnet.

    ``drift_ratio``: actual over estimated latency of ``old_subnet``; ``service_ms``: the median of its last calls;
    ``prepare_ms``: loading the new plan, ``ahead`` of the decision or after it; ``exchange_ms``: the exchange itself.
    ``cause``: of a device that became slower: ``throttled``, ``load``, ``power_mode``, ``home`` (one provider alone is
    slow) or ``unknown``; None for one that became faster, and in lines of earlier versions.
    """

    why: str
    old_subnet: str
    subnet: str
    drift_ratio: float
    service_ms: float
    expected_ms: float
    prepare_ms: float
    ahead: bool
    exchange_ms: float
    cause: str | None = None


class SwitchFailed(msgspec.Struct, frozen=True, tag="switch_failed", tag_field="event"):
    """A subnet could not be loaded; ``failure``: the reason. The plan in use stays."""

    subnet: str
    failure: str


class OutOfReach(msgspec.Struct, frozen=True, tag="out_of_reach", tag_field="event"):
    """No pooled subnet meets the budget at the device's current speed: the fastest runs. Logged once until one does."""

    budget_latency_ms: float
    drift_ratio: float
    fastest_ms: float
    searching: bool


class Searched(msgspec.Struct, frozen=True, tag="searched", tag_field="event"):
    """A background search ended; ``failure``: why it found nothing."""

    budget_latency_ms: float
    drift_ratio: float
    candidates: int
    seconds: float
    failure: str | None


class PriorChanged(msgspec.Struct, frozen=True, tag="prior_changed", tag_field="event"):
    """The mix of classes changed while serving, and the plan took another prior.

    ``answers``: that it was estimated on; ``moved_share``: of the answers, from one class to another (0 to 1).
    """

    answers: int
    moved_share: float


class Resized(msgspec.Struct, frozen=True, tag="resized", tag_field="event"):
    """The memory cap changed, None for none: ``why`` is ``asked``, ``pressure``, ``room`` or ``failed``.

    ``exits``: those of the plan from now on; ``ends_at``: the exit that the path ends with, if it was cut short.
    """

    why: str
    old_cap_bytes: int | None
    cap_bytes: int | None
    available_bytes: int | None
    exits: tuple[str, ...]
    ends_at: str | None
    failure: str | None = None


Event = (
    Opened
    | Profiled
    | Adapted
    | Infeasible
    | Delivered
    | Refused
    | ExitsExchanged
    | Calibrated
    | PlanChosen
    | Escalating
    | SplitChosen
    | Splitting
    | Watching
    | Switched
    | SwitchFailed
    | OutOfReach
    | Searched
    | PriorChanged
    | Resized
)


class LogLine(msgspec.Struct, frozen=True):
    """One line: time, bundle (sha256 of its manifest), runtime and event."""

    schema: int
    time: str
    bundle: str
    runtime: str
    event: Event


class AdaptationLog:
    """Appends lines to a file. A write error is reported once and never stops inference.

    The file is rotated at ``max_bytes``; ``kept`` old files are kept. Thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        bundle: str,
        runtime: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        max_bytes: int = MAX_BYTES,
        kept: int = KEPT_FILES,
    ) -> None:
        self.path = path
        self._bundle = bundle
        self._runtime = runtime
        self._now = now
        self._max_bytes, self._kept = max_bytes, kept
        self._warned = False

    def write(self, event: Event) -> None:
        """Append one event."""
        line = LogLine(
            schema=SCHEMA_VERSION,
            time=self._now().isoformat(timespec="milliseconds"),
            bundle=self._bundle,
            runtime=self._runtime,
            event=event,
        )
        try:
            append_line(self.path, msgspec.json.encode(line), max_bytes=self._max_bytes, kept=self._kept)
        except OSError as error:
            if not self._warned:
                _log.warning("the adaptation log %s cannot be written: %s", self.path, error.strerror)
            self._warned = True


def read_log(path: Path) -> Iterator[LogLine]:
    """The lines of a log, oldest file first; an incomplete last line is left out.

    Raises:
        UsageError: there is no such log, or a line breaks the schema.
    """
    try:
        with opened_files(path) as opened:
            files = [(name, file.read().split(b"\n")[:-1]) for name, file in opened]
    except OSError as error:
        raise UsageError(f"cannot read the log {path}: {error.strerror}") from error
    for name, lines in files:
        for number, line in enumerate(lines, start=1):
            try:
                yield decode_json(line, LogLine)
            except ValueError as error:
                raise UsageError(f"line {number} of {name} breaks the schema: {error}") from error


def delivered(delivery: Delivery) -> Delivered:
    """A bundle came from a server."""
    return Delivered(
        how=delivery.source,
        version=delivery.version,
        blobs_fetched=delivery.blobs_fetched,
        bytes_fetched=delivery.bytes_fetched,
        resumed=delivery.resumed,
        failure=delivery.failure,
    )


def refused(refusal: Refusal, failure: str | None) -> Refused:
    """A version that was offered is not used."""
    return Refused(refusal.version, refusal.digest, refusal.reason, failure or "")


def profiled(profile: Profile) -> Profiled:
    """All blocks were measured."""
    predict = profile.cost_model().latency_ms
    errors = [abs(predict(measured.subnet) / measured.measured_ms - 1) for measured in profile.fitted]
    return Profiled(
        original_ms=profile.original_ms,
        scale=profile.scale,
        offset_ms=profile.offset_ms,
        median_error=float(np.median(errors)),
        nodes_by_provider=profile.nodes_by_provider,
    )


def chosen(found: Found) -> Adapted | PlanChosen | SplitChosen:
    """A plan was chosen and is in use: a subnet of a search, a split of the subnet in use, or any other."""
    if found.split is not None:
        return split_chosen(found.split)
    if found.measured is None or not found.pool or not found.goal.is_budget or found.choice.kind != "subnet":
        cost = found.held_out or found.expected
        return _chosen(found.choice, cost, found.goal.requirement(), found.samples, found.notes)
    return Adapted(
        budget_latency_ms=found.goal.latency_ms,
        budget_memory_mb=found.goal.memory_mb,
        subnet=str(found.subnet),
        predicted_ms=found.expected.latency_ms or 0.0,
        measured_ms=found.measured.latency_ms,
        predicted_peak_bytes=found.expected.peak_bytes,
        accuracy_search=found.expected.accuracy or 0.0,
        accuracy_holdout=None if found.held_out is None else found.held_out.accuracy,
        samples=found.samples - found.judged,
        subnets_evaluated=found.considered,
        seconds=found.seconds,
        stopped=found.stopped,
        within_budget_probability=found.measured.within_budget_probability,
        slowdown=found.measured.slowdown,
    )


def infeasible(goal: Goal, error: InfeasibleBudgetError) -> Infeasible:
    """No plan keeps the goal."""
    return Infeasible(
        budget_latency_ms=goal.latency_ms,
        budget_memory_mb=goal.memory_mb,
        nearest=" ".join(error.nearest),
        nearest_latency_ms=error.nearest_latency_ms,
    )


def split_chosen(decision: SplitDecision) -> SplitChosen:
    """The split of the subnet was decided."""
    split = decision.plan.split
    return SplitChosen(
        subnet=str(decision.plan.subnet),
        position=split.position if split is not None else None,
        uplink_mbps=decision.uplink.mbps,
        predicted_ms=decision.best.latency_ms,
        on_device_ms=None if decision.is_head_only else decision.on_device.latency_ms,
        bytes_sent=decision.best.bytes_sent,
    )


def followed(choice: Choice, requirement: Requirement, uplink: Uplink | None, *, samples: int) -> PlanChosen:
    """The network had changed, and the plan with it; costs are those on the samples that chose."""
    where = "out of reach" if uplink is None else f"{uplink.mbps:.3g} Mbit/s, {uplink.round_trip_ms:.3g} ms round trip"
    return _chosen(choice, choice.cost, requirement, samples, (f"the network changed: {where}",))


def _chosen(
    choice: Choice, cost: PlanCost, requirement: Requirement, samples: int, notes: tuple[str, ...]
) -> PlanChosen:
    return PlanChosen(
        plan_kind=choice.kind,
        subnet=str(choice.plan.subnet),
        optimise=requirement.optimise,
        limits={name: float(limit) for name, limit, _ in requirement.limits},
        considered=choice.considered,
        samples=samples,
        accuracy=cost.accuracy,
        latency_ms=cost.latency_ms,
        energy_mj=cost.energy_mj,
        bytes_sent=cost.bytes_sent,
        share_early=cost.share_early,
        share_asked=cost.share_asked,
        share_abstained=cost.share_abstained,
        notes=notes,
        share_asked_early=cost.share_asked_early,
        saved=choice.saved_by_asking_early,
    )

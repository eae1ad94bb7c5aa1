"""Lines of the adaptation log that live update writes."""

from __future__ import annotations

from device_sdk.errors import PathweaveError
from device_sdk.live.plan_pool import PlanPool
from device_sdk.live.switching import Decision
from device_sdk.logs.adaptation_log import OutOfReach, Searched, Switched, SwitchFailed, Watching
from device_sdk.profiling.slow_cause import Cause
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Subnet


def watching(pool: PlanPool, subnet: Subnet) -> Watching:
    """Live update began with ``subnet`` in use."""
    latencies_ms = [one.cost.latency_ms for one in pool.candidates]
    return Watching(
        budget_latency_ms=_latency_ms(pool.budget),
        budget_memory_mb=pool.budget.memory_mb,
        subnet=str(subnet),
        candidates=len(pool.candidates),
        fastest_ms=min(latencies_ms),
        slowest_ms=max(latencies_ms),
    )


def switched(
    decision: Decision,
    old: Subnet,
    target: Candidate,
    *,
    prepare_ms: float,
    ahead: bool,
    exchange_ms: float,
    cause: Cause | None = None,
) -> Switched:
    """The subnet ``old`` was exchanged for ``target``; ``cause``: of a device that became slower."""
    return Switched(
        why=decision.why,
        old_subnet=str(old),
        subnet=str(target.subnet),
        drift_ratio=decision.ratio,
        service_ms=decision.service_ms,
        expected_ms=decision.expected_ms(target),
        prepare_ms=prepare_ms,
        ahead=ahead,
        exchange_ms=exchange_ms,
        cause=cause,
    )


def switch_failed(subnet: Subnet, error: PathweaveError) -> SwitchFailed:
    """``subnet`` could not be made ready."""
    return SwitchFailed(subnet=str(subnet), failure=str(error))


def out_of_reach(budget: Budget, ratio: float, fastest_ms: float, *, searching: bool) -> OutOfReach:
    """Nothing keeps ``budget`` at this drift ratio."""
    return OutOfReach(
        budget_latency_ms=_latency_ms(budget), drift_ratio=ratio, fastest_ms=ratio * fastest_ms, searching=searching
    )


def searched(budget: Budget, ratio: float, *, candidates: int, seconds: float, failure: str | None) -> Searched:
    """A search in the background, at ``budget`` of predicted latency, ended."""
    return Searched(
        budget_latency_ms=_latency_ms(budget),
        drift_ratio=ratio,
        candidates=candidates,
        seconds=seconds,
        failure=failure,
    )


def _latency_ms(budget: Budget) -> float:
    assert budget.latency_ms is not None
    return budget.latency_ms

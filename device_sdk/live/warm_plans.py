"""Plans that are ready before they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.search.port import Candidate
from device_sdk.supernet.plan import Plan, Subnet


@dataclass(frozen=True)
class PreparedPlan:
    """A plan, the model that runs it, and how long it took to make it ready."""

    plan: Plan
    loaded: LoadedPlan
    prepare_ms: float


class WarmPlans:
    """Prepared plans under a cap of bytes, by the predicted peak of their subnets. Changed by one thread.

    Plans are dropped, never closed: a call may still run one.
    """

    def __init__(self) -> None:
        self._ready: dict[Subnet, PreparedPlan] = {}

    @property
    def subnets(self) -> frozenset[Subnet]:
        """The subnets that are ready. Thread-safe."""
        return frozenset(self._ready.copy())

    def want(self, candidates: Sequence[Candidate], *, cap_bytes: int) -> list[Candidate]:
        """Keep the first of ``candidates`` that fit under the cap together and drop the rest; those to be prepared."""
        wanted: list[Candidate] = []
        left = cap_bytes
        for one in candidates:
            if one.cost.peak_bytes <= left:
                wanted.append(one)
                left -= one.cost.peak_bytes
        subnets = {one.subnet for one in wanted}
        self._ready = {subnet: ready for subnet, ready in self._ready.items() if subnet in subnets}
        return [one for one in wanted if one.subnet not in self._ready]

    def put(self, prepared: PreparedPlan) -> None:
        """Keep a plan until ``want`` drops it."""
        self._ready[prepared.plan.subnet] = prepared

    def take(self, plan: Plan) -> PreparedPlan | None:
        """The prepared model of just this plan, if there is one; it is not kept any longer."""
        ready = self._ready.get(plan.subnet)
        if ready is None or ready.plan != plan:
            return None
        return self._ready.pop(plan.subnet)

    def clear(self) -> None:
        """Drop all."""
        self._ready.clear()

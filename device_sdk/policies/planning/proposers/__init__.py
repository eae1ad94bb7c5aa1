"""Proposers: each yields whole plans of one kind from evidence. A new one is a file, and a line in ``PROPOSERS``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from device_sdk.errors import UsageError
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.planning.choice import Family
from device_sdk.policies.planning.ground import Ground
from device_sdk.policies.planning.proposers.abstaining import propose_abstaining
from device_sdk.policies.planning.proposers.asking import propose_asking
from device_sdk.policies.planning.proposers.crossing import propose_crossing
from device_sdk.policies.planning.proposers.running_here import propose_running_here
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import KINDS, Goal


class Proposer(Protocol):
    """The port of proposers."""

    def __call__(
        self, ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
    ) -> Iterator[Family]:
        """Families of plans on ``network``, None for none; ``kinds``: everything that is considered beside its own."""


PROPOSERS: dict[str, Proposer] = {
    "subnets": propose_running_here,
    "abstain": propose_abstaining,
    "ask": propose_asking,
    "split": propose_crossing,
}
"""By the kind that ``consider`` names. ``subnets`` always runs; ``exits`` change what all others start from."""


def considered(kinds: Collection[str] | None, goal: Goal, servers: Collection[str]) -> frozenset[str]:
    """The kinds to consider: those named, or by default subnets and what the goal and the connected servers allow.

    ``servers``: the kinds that connected servers make possible.

    Raises:
        UsageError: an unknown kind, or none.
    """
    if kinds is None:
        return frozenset(["subnets", *(["abstain"] if goal.coverage < 1 else []), *servers])
    known = dict.fromkeys([*KINDS, *PROPOSERS])
    unknown = sorted(set(kinds) - set(known))
    if unknown or not kinds:
        named = f"there is no kind of plan {unknown[0]!r}" if unknown else "no kind of plan may be considered"
        raise UsageError(named, hint="known: " + ", ".join(known))
    return frozenset(kinds)

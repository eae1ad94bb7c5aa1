"""Proposers: each yields whole plans of one kind from evidence. A new one is a file, and a line in ``PROPOSERS``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from device_sdk.errors import UsageError
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.planning.choice import Family
from device_sdk.policies.planning.ground import Ground
from device_sdk.policies.planning.proposers.abstaining import propose_abstaining
from device_sdk.policies.planning.proposers.asking import propose_asking
from device_sdk.policies.planning.proposers.cascading import propose_cascading
from device_sdk.policies.planning.proposers.crossing import propose_crossing
from device_sdk.policies.planning.proposers.running_here import propose_running_here
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import KINDS, Goal

Need = Literal["answers", "tails"]
"""Of a connected server: its model's answers to samples, or that it runs the rest of paths."""


class Families(Protocol):
    """The port of proposers."""

    def __call__(
        self, ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
    ) -> Iterator[Family]:
        """Families of plans on ``network``, None for none; ``kinds``: everything that is considered beside its own."""


@dataclass(frozen=True)
class Proposer:
    """A kind of plan. ``propose``: yields its plans.

    ``needs``: of a connected server; None for nothing.
    ``may_be_faster``: than every subnet alone, so that it is heard where no subnet keeps the latency.
    """

    propose: Families
    needs: Need | None = None
    may_be_faster: bool = False


PROPOSERS: dict[str, Proposer] = {
    "subnets": Proposer(propose_running_here),
    "abstain": Proposer(propose_abstaining),
    "cascade": Proposer(propose_cascading),
    "ask": Proposer(propose_asking, needs="answers", may_be_faster=True),
    "split": Proposer(propose_crossing, needs="tails", may_be_faster=True),
}
"""By the kind that ``consider`` names. ``subnets`` always runs; ``exits`` change what all others start from."""


def that_need(need: Need | None) -> list[str]:
    """The kinds that need this of a connected server."""
    return [kind for kind, one in PROPOSERS.items() if one.needs == need]


def may_be_faster(kinds: Collection[str]) -> bool:
    """True if some of ``kinds`` may keep a latency that no subnet alone keeps."""
    return any(kind == "exits" or (kind in PROPOSERS and PROPOSERS[kind].may_be_faster) for kind in kinds)


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

"""A proposer: plans that give no answer where the two most probable classes are close, at a few round margins.

The chooser finds the threshold of every decider by itself (``abstain``). This kind has round numbers only, which can be
written into a specification. Importing the file registers it; then any goal may consider it:

    import proposer
    found = model.adapt(images, Goal(coverage=0.9), consider={"margins"})

A proposer yields whole plans with their expected costs, as columns: a ``Family`` holds plans that differ in one number.
It does not measure, and asks no one: what the device and the servers answer is in ``ground.evidence``. The planner
compares its plans with those of all other kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.costs.threshold_sweep import Costs
from device_sdk.policies.planning.choice import Family, always
from device_sdk.policies.planning.ground import Ground
from device_sdk.policies.planning.proposers import PROPOSERS, Proposer
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Abstain, Margin

KIND = "margins"  # the name for ``consider``, and in ``found.by_kind``
ROUND = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def propose_margins(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """Each plan of this device with abstention below each round margin: a family of one plan each."""
    for local in ground.without_exits:
        for margin in ROUND:
            plan = replace(local.plan, hard=Abstain(Margin(margin)))
            cost = expected_cost(ground.supernet, plan, ground.evidence, ground.costs, network, power)
            yield Family(KIND, Costs.of(cost), always(plan))


PROPOSERS[KIND] = Proposer(propose_margins)

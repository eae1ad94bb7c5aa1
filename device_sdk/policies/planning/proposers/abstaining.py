"""Plans that leave hard samples without an answer, at every threshold of every decider. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.threshold_sweep import Sweep
from device_sdk.policies.planning.choice import Family, swept
from device_sdk.policies.planning.ground import Ground
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Abstain, MaxConfidence

ABSTAINS = Abstain(MaxConfidence(0.0))


def propose_abstaining(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """Each plan of this device with abstention at its end."""
    for local in ground.local:
        if local.abstaining:
            yield swept(local.plan, ABSTAINS, Sweep(local.abstaining), None, power)

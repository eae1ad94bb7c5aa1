"""Plans that answer every sample on this device: subnets, and subnets with their exits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.threshold_sweep import Costs
from device_sdk.policies.planning.choice import Family, always
from device_sdk.policies.planning.ground import Ground
from device_sdk.supernet.cost import Power


def propose_running_here(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """Each plan as it is."""
    for local in ground.local:
        yield Family(local.plan.kind, Costs.of(local.route.cost(power)), always(local.plan))

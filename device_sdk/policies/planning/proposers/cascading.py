"""Plans whose hard samples are answered by a second, more accurate path on this device. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.threshold_sweep import Sweep
from device_sdk.policies.planning.choice import Family, swept
from device_sdk.policies.planning.ground import Ground, LocalPlan
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Cascade, Subnet


def propose_cascading(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """Each plan with each slower and more accurate subnet behind it, at every threshold.

    The second path begins with the input, and also where it leaves the first, if they begin alike. Its latency counts
    at the bound of the share of samples that take it (``Ground.certainty``).
    """
    latency_ms = {one.plan.subnet: ground.costs.latency_ms(one.plan.subnet) for one in ground.without_exits}
    right = {one.plan.subnet: ground.evidence.credit(one.route.logits).mean() for one in ground.without_exits}
    for local in ground.local:
        first = local.plan.subnet
        for second in latency_ms if local.abstaining else ():
            if latency_ms[second] > latency_ms[first] and right[second] > right[first]:
                yield from _behind(ground, local, second, power)


def _behind(ground: Ground, local: LocalPlan, second: Subnet, power: Power | None) -> Iterator[Family]:
    kind, sweep = local.abstaining[0].kind, Sweep(local.abstaining)
    for position in dict.fromkeys([0, _shared(ground, local.plan.subnet, second)]):
        cascade = Cascade(kind, second, position)
        plan = replace(local.plan, hard=cascade)
        yield swept(plan, cascade, sweep, local.route.cascading(cascade), power, ground.certainty)


def _shared(ground: Ground, first: Subnet, second: Subnet) -> int:
    """The last cut point up to which both paths are the same; 0 for the input."""
    position = 0
    for own, other in zip(first.edges, second.edges, strict=False):
        if own != other:
            break
        position = ground.supernet.block(own.block).end
    return position

"""Plans that send samples to one of the servers' models: the hard ones, or all of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.route import Route
from device_sdk.policies.costs.threshold_sweep import Costs, Sweep
from device_sdk.policies.planning.choice import Family, always, swept
from device_sdk.policies.planning.ground import Ground, rankings
from device_sdk.policies.planning.proposers.abstaining import ABSTAINS
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import UNFITTED, Ask, RemoteRef, Split


def propose_asking(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """Each plan with hard samples sent, at every threshold; and a server's model alone, the subnet as its fallback.

    The latter answers everything, or, where abstaining is considered, everything that it is sure of. Of several
    servers each is tried; one is not asked at the end of a subnet where that gains nothing (``Ground.pays``).
    """
    for server in ground.servers:
        for local in ground.local:
            if local.asking[server] and ground.pays(local.plan.subnet, server):
                ask = Ask(local.asking[server][0].kind, server)
                sweep = Sweep(local.asking[server])
                yield swept(local.plan, ask, sweep, local.route.asking(ask, network), power)
        yield from _alone(ground, server, network, power, kinds)


def _alone(
    ground: Ground, server: RemoteRef, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    evidence, sure = ground.evidence, None
    for local in ground.without_exits if server in evidence.servers else ():
        if local.plan.input_size:
            continue
        plan = replace(local.plan, split=Split(0, (), (), server))
        route = Route.to_end(ground.supernet, plan, evidence, ground.costs, network)
        yield Family(plan.kind, Costs.of(route.cost(power)), always(plan))
        if "abstain" in kinds:
            sure = rankings(route, UNFITTED) if sure is None else sure
            yield swept(plan, ABSTAINS, Sweep(sure, route), None, power)

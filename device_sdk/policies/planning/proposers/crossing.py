"""Plans whose path goes on at a server: every split of every subnet, in 8 bits and in fewer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from device_sdk.offload.packing import BITS, can_travel
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.route import Route
from device_sdk.policies.costs.threshold_sweep import Crossing, Sweep, sweep_splits
from device_sdk.policies.planning.choice import Family, swept
from device_sdk.policies.planning.ground import Ground, LocalPlan
from device_sdk.policies.planning.proposers.abstaining import ABSTAINS
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Split, Subnet, without_homes


def propose_crossing(
    ground: Ground, network: Network | None, power: Power | None, kinds: Collection[str]
) -> Iterator[Family]:
    """All splits of each plan behind its exits, and, where it is considered, abstention behind the best of them."""
    known: dict[Subnet, list[Crossing]] = {}
    for local in ground.local:
        subnet = local.plan.subnet
        if subnet not in known:
            known[subnet] = list(_crossings(ground, local.route, network))
        last = max((ground.supernet.exit(choice.exit).position for choice in local.plan.exits), default=0)
        fitting = [one for one in known[subnet] if one.split.position >= last]
        for group in ([o for o in fitting if not o.split.position], [o for o in fitting if o.split.position]):
            if group:
                yield from _crossing_at(local, group, network, power, abstains="abstain" in kinds)


def _crossing_at(
    local: LocalPlan, crossings: Sequence[Crossing], network: Network | None, power: Power | None, *, abstains: bool
) -> Iterator[Family]:
    found = sweep_splits(local.route, crossings, power)
    plans = [replace(local.plan, split=split) for split in found.splits]
    yield Family(plans[0].kind, found.costs, plans.__getitem__)
    tried = [*local.abstaining[:1], *local.abstaining[1:][-1:]] if abstains else []
    for split in found.extremes() if tried else ():
        sweep = Sweep(tried, local.route.crossed(split, network))
        yield swept(replace(local.plan, split=split), ABSTAINS, sweep, None, power)


def _splits(ground: Ground, subnet: Subnet, network: Network | None) -> Iterator[Split]:
    """The ways to let a server run the rest of ``subnet``."""
    if ground.tail_server is None or network is None or network.server is None:
        return
    known = network.server.edge_costs
    for number, (edge, block) in reversed(list(enumerate(ground.supernet.walk(subnet)))):
        cut = ground.supernet.cut_points[block.start]
        if edge.on("") not in known:
            return
        if can_travel(cut) and (block.start > 0 or ground.sends_input):
            bits = (BITS,) * len(cut.tensors)
            yield Split(block.start, bits, without_homes(subnet.edges[number:]), ground.tail_server)


def _crossings(ground: Ground, route: Route, network: Network | None) -> Iterator[Crossing]:
    """The splits of the route's subnet in 8 bits, and in fewer bits where their logits are known."""
    few: dict[int, list[tuple[tuple[int, ...], Array]]] = {}
    for (subnet, position, bits), logits in ground.evidence.received.items():
        if subnet == route.subnet:
            few.setdefault(position, []).append((bits, logits))
    for split in _splits(ground, route.subnet, network):
        yield Crossing.of(route, split, network)
        for bits, logits in few.get(split.position, ()):
            right = ground.evidence.right(logits)
            yield Crossing.of(route, replace(split, bits=bits), network, right)

"""The whole subnets that show what other homes than the first cost, and crossing between homes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from device_sdk.execution.workspace import Workspace
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Subnet

_AT_EACH = 20  # subnets at each further home alone
_CROSSING = 6  # subnets that cross, for each pair of homes and direction
_SHARES = (0.5, 0.25, 0.75)  # of the blocks, behind which a subnet crosses


def subnets_at_homes(workspace: Workspace, at_first: Sequence[Subnet], costs: CostModel) -> list[Subnet]:
    """Some of ``at_first`` at every further home, and some that cross once, in every direction; none for one home.

    ``costs``: of each edge alone at all its homes, so that blocks that a home refuses are left where they run.
    """
    homes = workspace.homes
    if not homes.several:
        return []
    names = ["", *(str(home) for home in homes.homes[1:])]
    alone = [one for name in names[1:] for one in _spread(_at(at_first, name, costs), _AT_EACH)]
    crossing = [
        one
        for before, after in permutations(names, 2)
        for one in _spread(_crossed(at_first, before, after, costs), _CROSSING)
    ]
    return list(dict.fromkeys([*alone, *crossing]))


def _at(subnets: Sequence[Subnet], home: str, costs: CostModel) -> list[Subnet]:
    moved = (Subnet(tuple(edge.on(home) for edge in subnet.edges)) for subnet in subnets)
    return list(filter(costs.knows, moved))


def _crossed(subnets: Sequence[Subnet], before: str, after: str, costs: CostModel) -> list[Subnet]:
    """Each subnet once, at ``before`` up to a share of its blocks, then at ``after``."""
    found = []
    for number, subnet in enumerate(subnets):
        count = len(subnet.edges)
        place = max(1, min(count - 1, round(count * _SHARES[number % len(_SHARES)])))
        moved = Subnet(tuple(edge.on(before if at < place else after) for at, edge in enumerate(subnet.edges)))
        if count > 1 and costs.knows(moved):
            found.append(moved)
    return found


def _spread(subnets: Sequence[Subnet], count: int) -> Iterator[Subnet]:
    """At most ``count`` of ``subnets``: the first two, the original and the cheapest, and others, evenly spread."""
    rest = subnets[2:]
    step = max(1.0, len(rest) / (count - 2))
    yield from subnets[:2]
    yield from (rest[int(at * step)] for at in range(min(count - 2, len(rest))))

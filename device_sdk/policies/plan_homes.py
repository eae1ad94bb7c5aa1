"""A plan at other homes: the same blocks, so the same answers, all at one home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from device_sdk.execution.workspace import Workspace
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Cascade, Plan, Subnet


def candidates_at_each_home(
    workspace: Workspace, costs: CostModel, candidate: Candidate, threads: int | None
) -> list[Candidate]:
    """``candidate`` at each home that has all of its blocks within ``threads``, but as it is."""
    return [
        replace(candidate, plan=plan, cost=costs.cost(plan.subnet))
        for plan in plans_at_each_home(workspace, candidate.plan, threads)
    ]


def plans_at_each_home(workspace: Workspace, plan: Plan, threads: int | None) -> list[Plan]:
    """``plan`` at each home that has all of its blocks within ``threads``, but as it is.

    None for one home alone, and for a split, whose head runs at the first.
    """
    if not workspace.homes.several or plan.split is not None:
        return []
    homes = sorted(_homes_of(workspace, [plan.subnet, *([] if plan.second is None else [plan.second])], threads))
    return [moved for moved in (at_home(plan, home) for home in homes) if moved != plan]


def _homes_of(workspace: Workspace, subnets: Sequence[Subnet], threads: int | None) -> set[str]:
    """The homes that run every block of ``subnets``."""
    homes, supernet = workspace.homes.within(threads), workspace.supernet
    edges = {edge.on("") for subnet in subnets for edge in subnet.edges}
    return set.intersection(*({one.home for one in homes.of(supernet, edge)} for edge in edges))


def at_home(plan: Plan, home: str) -> Plan:
    """``plan`` with all blocks of its paths at ``home``; empty: at the first."""
    hard = plan.hard
    if isinstance(hard, Cascade):
        hard = msgspec.structs.replace(hard, subnet=_moved(hard.subnet, home))
    return msgspec.structs.replace(plan, subnet=_moved(plan.subnet, home), hard=hard)


def _moved(subnet: Subnet, home: str) -> Subnet:
    return Subnet(tuple(edge.on(home) for edge in subnet.edges))

"""The segments of a plan: what runs without a decision in between. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.supernet.plan import Ask, Edge, ExitChoice, Plan
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class PlanSegment:
    """The edges of a segment, the exit at its end, and what else happens there.

    ``split``: the path may go on at a server. ``kept``: the activations may be sent for samples that turn out to be
    hard. Without edges it is the exit's branch alone, or nothing.
    """

    edges: tuple[Edge, ...]
    exit: ExitChoice | None
    split: bool = False
    kept: bool = False

    @property
    def runs(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.edges) or self.exit is not None


def segments(supernet: Supernet, plan: Plan) -> list[PlanSegment]:
    """The segments of ``plan``, in order; only the first can be without edges: where it is split at the input."""
    exits = {supernet.exit(choice.exit).position: choice for choice in plan.exits}
    split = plan.split.position if plan.split is not None else None
    kept = plan.hard.sends if isinstance(plan.hard, Ask) and plan.hard.sends != "input" else None
    found = [PlanSegment((), None, split=True)] if split == 0 else []
    edges: list[Edge] = []
    for edge, block in supernet.walk(plan.subnet):
        edges.append(edge)
        if block.end in exits or block.end in (split, kept):
            ends = PlanSegment(tuple(edges), exits.get(block.end), split=block.end == split, kept=block.end == kept)
            found.append(ends)
            edges = []
    found.append(PlanSegment(tuple(edges), None))
    return found

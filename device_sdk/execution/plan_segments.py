"""The segments of a plan: what runs without a decision in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The segments of ``plan``, in order; only the first can be without edges: where it is split at the input.

    Exits at which no sample leaves by its confidence are left out (``steps`` has them). Behind an exit
    that answers everything, with a threshold of 0, nothing follows.
    """
    split = plan.split.position if plan.split is not None else None
    kept = plan.hard.sends if isinstance(plan.hard, Ask) and plan.hard.sends != "input" else None
    taken = [choice for choice in plan.exits if choice.decides]
    found = [PlanSegment((), None, split=True)] if split == 0 else []
    return found + _divided(supernet, plan, taken, split=split, kept=kept)


def steps(supernet: Supernet, plan: Plan) -> list[PlanSegment]:
    """The segments of ``plan`` on this device alone, each up to an answer: that of any exit, or that of the end."""
    return _divided(supernet, plan, plan.exits)


def _divided(
    supernet: Supernet,
    plan: Plan,
    exits: Sequence[ExitChoice],
    *,
    split: int | None = None,
    kept: int | None = None,
) -> list[PlanSegment]:
    choices = {supernet.exit(choice.exit).position: choice for choice in exits}
    found: list[PlanSegment] = []
    edges: list[Edge] = []
    for edge, block in supernet.walk(plan.subnet):
        edges.append(edge)
        if block.end in choices or block.end in (split, kept):
            choice = choices.get(block.end)
            found.append(PlanSegment(tuple(edges), choice, split=block.end == split, kept=block.end == kept))
            edges = []
            if choice is not None and choice.threshold <= 0:
                return found
    found.append(PlanSegment(tuple(edges), None))
    return found

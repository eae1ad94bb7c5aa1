"""The segments of a plan: stretches that run without a decision in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.supernet.plan import Ask, Cascade, Edge, ExitChoice, Plan
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class PlanSegment:
    """The edges of a segment, the exit at its end, and the other uses of the activations there.

    ``split``: the path may go on at a server. ``kept``: the activations may be sent for samples that turn out to be
    hard. ``aside``: the activations go to the fallback's branch when the server does not answer; ``fallback``: it is
    that branch. ``second``: the rest of a cascade's second path. Without edges it is the exit's branch alone, or
    nothing.
    """

    edges: tuple[Edge, ...]
    exit: ExitChoice | None
    split: bool = False
    kept: bool = False
    aside: bool = False
    fallback: bool = False
    second: bool = False

    @property
    def runs(self) -> bool:
        """True if there is anything to run."""
        return bool(self.edges) or self.exit is not None


def segments(supernet: Supernet, plan: Plan) -> list[PlanSegment]:
    """The segments of ``plan``, in order; only the first can be without edges: where it is split at the input.

    Exits at which no sample leaves by its confidence are left out (``steps`` has them). Behind an exit that answers
    everything, with a threshold of 0, nothing follows. Behind a split with another fallback than the subnet, the branch
    of an exit may follow that is otherwise left out: it takes the activations set aside for it. The rest of a cascade's
    second path comes last: it takes the activations kept where it leaves the first, or the input.
    """
    split = plan.split.position if plan.split is not None else None
    kept = plan.hard.sends if isinstance(plan.hard, Ask) and plan.hard.sends != "input" else None
    taken = [choice for choice in plan.exits if choice.decides]
    found = [PlanSegment((), None, split=True)] if split == 0 else []
    if isinstance(plan.hard, Cascade):
        second = PlanSegment(supernet.second_edges(plan), None, second=True)
        return [*_divided(supernet, plan, taken, kept=plan.hard.position or None), second]
    last = fallback_branch(plan)
    if last is None:
        return found + _divided(supernet, plan, taken, split=split, kept=kept)
    divided = _divided(supernet, plan, taken, split=split, aside=supernet.exit(last.exit).position)
    return [*divided, PlanSegment((), last, fallback=True)] if divided[-1].split else divided


def fallback_branch(plan: Plan) -> ExitChoice | None:
    """The exit that runs only when the split's server does not answer; None where there is none, or it ran before."""
    if plan.split is None or plan.split.fallback != "exit" or not plan.exits:
        return None
    return None if plan.exits[-1].decides else plan.exits[-1]


def answering_exits(plan: Plan) -> tuple[ExitChoice, ...]:
    """The exits that answer without a deadline: by confidence, or in place of the split's server."""
    branch = fallback_branch(plan)
    return tuple(one for one in plan.exits if one.decides or one == branch)


def steps(supernet: Supernet, plan: Plan) -> list[PlanSegment]:
    """The segments of ``plan`` on this device alone, each up to an answer: that of any exit, or that of the end.

    Without the subnet as fallback of its split, the last exit is the end; there are no steps if there is no exit.
    """
    return [one for one in _divided(supernet, plan, plan.exits) if not plan.is_head or one.exit is not None]


def _divided(
    supernet: Supernet,
    plan: Plan,
    exits: Sequence[ExitChoice],
    *,
    split: int | None = None,
    kept: int | None = None,
    aside: int | None = None,
) -> list[PlanSegment]:
    choices = {supernet.exit(choice.exit).position: choice for choice in exits}
    found: list[PlanSegment] = []
    edges: list[Edge] = []
    here = supernet.edges_here(plan)
    for edge in here:
        edges.append(edge)
        end = supernet.block(edge.block).end
        if end in choices or end in (split, kept, aside):
            choice = choices.get(end)
            segment = PlanSegment(tuple(edges), choice, split=end == split, kept=end == kept, aside=end == aside)
            found.append(segment)
            edges = []
            if choice is not None and choice.threshold <= 0:
                return found
    if edges or not plan.is_head:
        found.append(PlanSegment(tuple(edges), None))
    return found

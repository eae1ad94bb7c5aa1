"""Attaching exits: at which cut points, and with which branches (docs/adr/0010; MEEdge's branch zoo)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from packager.supernet.blocks.streams import several
from packager.supernet.branches import BRANCHES, build_branch
from packager.supernet.expansion import Expansion, TrainableExit, count_macs

# minimum share of the MACs behind an exit: with less, it saves nothing
_LEAST_LEFT = 0.05


def attach_exits(expansion: Expansion, *, count: int) -> Expansion:
    """The expansion with untrained exits at up to ``count`` inner cut points, one per branch structure that fits.

    If none fits although ``count`` is above 0, a note is added.
    """
    macs = [block.macs for block in expansion.originals]
    exits = [
        exit_
        for position in exit_positions(macs, count=count, left_out=several(expansion.traced.cuts))
        for branch in BRANCHES
        if (exit_ := _exit(expansion, position, branch, whole=sum(macs))) is not None
    ]
    notes = expansion.notes
    if count and not exits:
        notes += ("no exits: no branch structure fits any inner cut point",)
    return replace(expansion, exits=tuple(exits), notes=notes)


def without_untrained_exits(expansion: Expansion, *, steps: int) -> Expansion:
    """The expansion without exits if they had no training step."""
    if steps or not expansion.exits:
        return expansion
    return replace(expansion, exits=(), notes=(*expansion.notes, "no exits: the training had no step for them"))


def exit_positions(macs: Sequence[int], *, count: int, left_out: Collection[int] = ()) -> tuple[int, ...]:
    """Up to ``count`` cut points that divide the original path's MACs evenly, in order.

    For each of the shares 1/(count + 1), 2/(count + 1), … the nearest cut point by MACs that is not chosen yet.
    Excluded: the input, the output, ``left_out``, and cut points with almost no MACs behind them.

    Args:
        macs: of each original block.
    """
    whole = sum(macs)
    done = [0, *itertools.accumulate(macs)]
    candidates = [k for k in range(1, len(macs)) if k not in left_out and whole - done[k] > _LEAST_LEFT * whole]
    chosen: list[int] = []
    for number in range(1, min(count, len(candidates)) + 1):
        wanted = whole * number / (count + 1)
        free = [k for k in candidates if k not in chosen]
        chosen.append(min(free, key=lambda k: abs(done[k] - wanted)))
    return tuple(sorted(chosen))


def _exit(expansion: Expansion, position: int, branch: str, *, whole: int) -> TrainableExit | None:
    spec, answer = expansion.traced.tensors[position], expansion.traced.tensors[-1]
    if spec.dtype != "float32":
        return None
    module = build_branch(branch, spec.shape, classes=answer.size, whole_macs=whole, seed=position)
    if module is None:
        return None
    return TrainableExit(
        id=f"x{position}-{branch}",
        position=position,
        branch=branch,
        module=module,
        macs=count_macs(module, spec.shape),
    )

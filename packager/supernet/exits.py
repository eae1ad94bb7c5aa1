"""Attaching exits: at which cut points, and with which branches (design §1; MEEdge's branch zoo)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from packager.supernet.blocks.streams import several
from packager.supernet.branches import BRANCHES, build_branch
from packager.supernet.expansion import Expansion, TrainableExit, count_macs

# an exit that leaves less than this share of the MACs to do saves nothing
_LEAST_LEFT = 0.05


def attach_exits(expansion: Expansion, *, count: int) -> Expansion:
    """The expansion with every branch structure that suits at up to ``count`` inner cut points, not yet trained.

    A note says so when there are none although some were asked for.
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
        notes += ("no exits: no inner cut point suits",)
    return replace(expansion, exits=tuple(exits), notes=notes)


def without_untrained_exits(expansion: Expansion, *, steps: int) -> Expansion:
    """The expansion as it may be packaged: exits that had no training step would answer at random."""
    if steps or not expansion.exits:
        return expansion
    return replace(expansion, exits=(), notes=(*expansion.notes, "no exits: the training had no step for them"))


def exit_positions(macs: Sequence[int], *, count: int, left_out: Collection[int] = ()) -> tuple[int, ...]:
    """Up to ``count`` cut points that divide the original path's work evenly, in order.

    ``macs``: of each original block. For each of the shares 1/(count + 1), 2/(count + 1), … the cut point at which
    the share of MACs done is nearest, among those not taken yet. Never the input, the output, or a cut point after
    which almost nothing is left to do, or one of ``left_out``.
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

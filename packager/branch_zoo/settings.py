"""Settings for training the branch zoo."""

from __future__ import annotations

from dataclasses import dataclass

from packager.branch_zoo.specs import GRID, BranchSpec


@dataclass(frozen=True, kw_only=True)
class ZooSettings:
    """Settings for training branches.

    ``steps``: updates at each cut point, all rungs together; None: as many as the time allows. ``cache_bytes``: limit
    of the cached features. ``rate``: peak learning rate (§4.1), in each rung with warm-up and decay. ``merge``: add
    self-merged siblings. ``temperature``, ``label_weight``: as in the recipe.
    """

    steps: int | None
    cache_bytes: float = 256e6
    rate: float = 1e-3
    merge: bool = True
    temperature: float = 4.0
    label_weight: float = 0.1
    seed: int = 0
    checkpoint_seconds: float = 30.0
    grid: tuple[BranchSpec, ...] = GRID

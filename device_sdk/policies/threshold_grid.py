"""Which thresholds of exits and of a decision are tried together: all that samples have, or some of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.policies.thresholds import ExitSamples
from device_sdk.supernet.plan import ExitChoice

Column = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True)
class Grid:
    """What is tried: ``thresholds`` of each exit, ascending, beside leaving it out; ``hard_eases``: how many of the
    distinct eases are hard, ascending."""

    thresholds: tuple[Column, ...]
    hard_eases: npt.NDArray[np.int64]

    @classmethod
    def of(cls, exits: Sequence[ExitSamples], ease: Column, *, most: int | None = None) -> Grid:
        """Every confidence and every ease that a sample has, or at most so many, evenly spaced by rank."""
        values = [np.unique(one.confidence[np.isfinite(one.confidence)]) for one in exits]
        return cls(tuple(_spread(one, most) for one in values), _spread(np.arange(len(np.unique(ease)) + 1), most))

    def around(
        self,
        chosen_exits: Sequence[ExitChoice],
        chosen_hard: int,
        exits: Sequence[ExitSamples],
        ease: Column,
        *,
        most: int,
    ) -> Grid:
        """What lies between the neighbours of what was chosen from this grid, in at most so many steps."""
        chosen = {one.exit: one.threshold for one in chosen_exits}
        thresholds = [
            _between(np.unique(one.confidence), grid, chosen.get(one.choice.exit), most)
            for one, grid in zip(exits, self.thresholds, strict=True)
        ]
        counts = np.arange(len(np.unique(ease)) + 1)
        return Grid(tuple(thresholds), _between(counts, self.hard_eases, chosen_hard, most))


def _spread(values: npt.NDArray[_Number], most: int | None) -> npt.NDArray[_Number]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if most is None or len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def _between(
    values: npt.NDArray[_Number], grid: npt.NDArray[_Number], chosen: float | None, most: int
) -> npt.NDArray[_Number]:
    """Values from the neighbour below ``chosen`` in the grid to the one above; None for a choice above all."""
    place = len(grid) if chosen is None else int(np.searchsorted(grid, chosen))
    low = grid[max(place - 1, 0)]
    high = grid[place + 1] if place + 1 < len(grid) else values[-1]
    return _spread(values[(values >= low) & (values <= high)], most)

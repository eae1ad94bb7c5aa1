"""Grids of thresholds of exits and of a decision that are tried together: all values of samples, or some. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.supernet.plan import ExitChoice

Column = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True)
class Grid:
    """Values to try, all ascending.

    ``thresholds`` of each exit, beside leaving it out; ``hard_eases``: for each decider, numbers of distinct eases that
    are hard; ``asks``: confidences below which each exit asks, beside asking about none.
    """

    thresholds: tuple[Column, ...]
    hard_eases: tuple[npt.NDArray[np.int64], ...]
    asks: tuple[Column, ...]

    @classmethod
    def of(
        cls, exits: Sequence[ExitSamples], eases: Sequence[Column], *, most: int | None = None, asks_early: bool = True
    ) -> Grid:
        """Every confidence and every ease that a sample has, or at most so many, evenly spaced by rank."""
        values = [np.unique(one.confidence[np.isfinite(one.confidence)]) for one in exits]
        asks = [_spread(one[1:], most) if asks_early else one[:0] for one in values]  # the least asks about none
        hard_eases = [_spread(np.arange(len(np.unique(one)) + 1), most) for one in eases]
        return cls(tuple(_spread(one, most) for one in values), tuple(hard_eases), tuple(asks))

    def around(
        self,
        chosen_exits: Sequence[ExitChoice],
        decider: int,
        chosen_hard: int,
        exits: Sequence[ExitSamples],
        ease: Column,
        *,
        most: int,
    ) -> Grid:
        """The values between the neighbours of those that were chosen from this grid, at most ``most`` for each limit.

        ``decider``: the chosen one, the only one that remains, with its ``ease``.
        """
        chosen = {one.exit: one for one in chosen_exits}
        thresholds, asks = [], []
        for number, one in enumerate(exits):
            values, choice = np.unique(one.confidence), chosen.get(one.choice.exit)
            thresholds.append(_between(values, self.thresholds[number], choice.threshold if choice else None, most))
            asks.append(_between_asks(values[1:], self.asks[number], choice.ask_below if choice else 0.0, most))
        counts = np.arange(len(np.unique(ease)) + 1)
        return Grid(tuple(thresholds), (_between(counts, self.hard_eases[decider], chosen_hard, most),), tuple(asks))


def _between_asks(values: Column, grid: Column, chosen: float, most: int) -> Column:
    """The same of confidences below which an exit asks: 0 is the neighbour below the first of the grid."""
    if not len(grid):
        return grid
    place = int(np.searchsorted(grid, chosen)) if chosen else -1
    low = grid[place - 1] if place > 0 else values[0]
    return _spread(values[(values >= low) & (values <= grid[min(place + 1, len(grid) - 1)])], most)


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

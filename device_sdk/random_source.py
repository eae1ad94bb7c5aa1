"""SplitMix64: the project's one random generator, the same bits in Python and Kotlin.

Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. Exact integers only, so
that a seed gives the same samples on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15

Item = TypeVar("Item")


class SplitMix64:
    """A stream of 64-bit integers from a 64-bit seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next(self) -> int:
        """The next integer in [0, 2^64)."""
        self._state = (self._state + _GAMMA) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound) for a bound of any size.

        Takes as many words as ``bound - 1`` has, most significant first, keeps the lowest bits that are needed, and
        draws again while the result is not below ``bound``.
        """
        if bound <= 0:
            raise ValueError("bound must be positive")
        bits = (bound - 1).bit_length()
        words = (bits + 63) // 64
        while True:
            value = 0
            for _ in range(words):
                value = (value << 64) | self.next()
            value &= (1 << bits) - 1
            if value < bound:
                return value

    def uniform(self) -> float:
        """A float in [0, 1) with 53 random bits."""
        return (self.next() >> 11) * 2.0**-53

    def choice(self, items: Sequence[Item]) -> Item:
        """One of ``items``, all equally likely."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """``items`` in random order (Fisher and Yates, from the end)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


def uniform_floats(seed: int, count: int) -> npt.NDArray[np.float32]:
    """``count`` float32 values in [0, 1): the top 24 bits of the first words of ``SplitMix64(seed)``, exactly.

    Returns: [count] float32.
    """
    with np.errstate(over="ignore"):
        state = np.uint64(seed & _MASK) + np.uint64(_GAMMA) * np.arange(1, count + 1, dtype=np.uint64)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)

"""Paths by their MACs relative to the original path: the stand-in for latency while packaging."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from device_sdk.graph import Edge, Subnet
from device_sdk.paths import WindowSampler, k_cheapest
from device_sdk.random_source import SplitMix64
from packager.errors import TrainingError
from packager.expansion import Expansion

_DRAWS = 1000  # each has a fair chance of a path with an added block
MACS_RANGES = 6  # ranges of a path's MACs in which paths are sampled and accuracy is reported


class MacsRanges:
    """Ranges of cost between the cheapest path and the original one, and random paths in them."""

    def __init__(self, expansion: Expansion) -> None:
        supernet = expansion.supernet()
        macs = {block.id: block.macs for block in supernet.blocks}
        self._original = supernet.original
        whole = sum(macs[edge.block] for edge in self._original.edges) or 1

        def ratio(edge: Edge) -> float:
            return macs[edge.block] / whole

        lowest, self.cheapest = k_cheapest(supernet, ratio, k=1)[0]
        self._steps = [
            ((edge,), self._original.edges[block.start : block.end]) for edge, block in supernet.walk(self.cheapest)
        ]
        step = (1.0 - lowest) / MACS_RANGES
        bounds = [lowest + step * k for k in range(MACS_RANGES)] + [1.0]
        self._samplers: list[tuple[float, float, WindowSampler]] = []
        for low, high in itertools.pairwise(bounds):
            sampler = WindowSampler(supernet, ratio, low=low - 1e-9, high=high + 1e-9)
            if sampler.sample(count=1, random=SplitMix64(0)):
                self._samplers.append((low, high, sampler))

    def sample(self, seed: int) -> Subnet:
        """A range at random, then a path uniformly from it, the original path left out: a function of ``seed``."""
        random = SplitMix64(seed)
        for _ in range(_DRAWS):
            _, _, sampler = random.choice(self._samplers)
            for subnet in sampler.sample(count=1, random=random):
                if subnet != self._original:
                    return subnet
        raise TrainingError("no path with an added block is cheaper than the original path")

    def between(self, seed: int) -> Subnet:
        """The cheapest path with some of its added blocks given back to the originals: a function of ``seed``.

        At least one added block stays; every number of them is equally likely.
        """
        random = SplitMix64(seed)
        left = sum(added != original for added, original in self._steps)
        kept = 1 + random.below(left)
        edges: list[Edge] = []
        for added, original in self._steps:
            keep = added != original and random.below(left) < kept
            edges += added if keep else original
            kept -= keep
            left -= added != original
        return Subnet(tuple(edges))

    def samples(self, count: int, *, seed: int) -> Iterator[tuple[float, float, list[Subnet]]]:
        """Up to ``count`` different paths of each range: (lowest ratio, highest ratio, paths)."""
        random = SplitMix64(seed)
        for low, high, sampler in self._samplers:
            yield low, high, sorted(set(sampler.sample(count=count, random=random)))

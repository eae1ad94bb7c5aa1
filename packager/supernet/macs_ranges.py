"""Sampling paths by their MACs relative to the original path, the proxy for latency during packaging."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from device_sdk.random_source import SplitMix64
from device_sdk.supernet.paths import WindowSampler, k_cheapest
from device_sdk.supernet.plan import Edge, Subnet
from packager.errors import TrainingError
from packager.supernet.expansion import Expansion

_DRAWS = 1000  # maximum attempts to draw a path with an added block
MACS_RANGES = 6  # ranges of a path's MACs in which paths are sampled and accuracy is reported


class MacsRanges:
    """Ranges of MACs between the cheapest path and the original one, and random paths in them.

    Paths over identities are excluded: a skip has no parameters, and where there are many of them almost all paths
    drawn would contain one. ``with_skip`` inserts a skip into a path.
    """

    def __init__(self, expansion: Expansion) -> None:
        identities = [block for block in expansion.added if block.properties.skip]
        self._skips = [(Edge(block.id), block.start, block.end) for block in identities]
        self._learning = {block.id for block in expansion.trained}
        self._supernet = supernet = expansion.without(block.id for block in identities).supernet()
        macs = {block.id: block.macs for block in expansion.blocks}
        self._original = supernet.original
        whole = sum(macs[edge.block] for edge in self._original.edges) or 1

        def ratio(edge: Edge) -> float:
            return macs[edge.block] / whole

        self._ratio = ratio
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
        """Draw a range, then a path uniformly from it, never the original path: a pure function of ``seed``.

        If there are identities, every second path takes one.
        """
        random = SplitMix64(seed)
        for _ in range(_DRAWS):
            _, _, sampler = random.choice(self._samplers)
            for subnet in sampler.sample(count=1, random=random):
                if subnet != self._original:
                    return self._perhaps_skipping(subnet, random)
        raise TrainingError("no path with an added block is cheaper than the original path")

    def between(self, seed: int) -> Subnet:
        """The cheapest path with some of its added blocks replaced by the originals: a pure function of ``seed``.

        The number of added blocks that remain is uniform, at least one.
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

    def _perhaps_skipping(self, subnet: Subnet, random: SplitMix64) -> Subnet:
        """``subnet``, every second time with a skip if a trained block remains."""
        if not self._skips or random.below(2):
            return subnet
        skipping = [path for path in self.skipping(subnet) if self._learning & set(path.block_ids)]
        return random.choice(skipping) if skipping else subnet

    def skipping(self, subnet: Subnet) -> list[Subnet]:
        """``subnet`` with each identity that fits it, one at a time."""
        return [path for edge, _, _ in self._skips if (path := self.with_skip(subnet, edge)) is not None]

    def with_skip(self, subnet: Subnet, skip: Edge) -> Subnet | None:
        """``subnet`` with the identity ``skip`` over the blocks between its ends; None unless it passes both ends."""
        start, end = next((start, end) for edge, start, end in self._skips if edge == skip)
        steps = list(self._supernet.walk(subnet))
        before = [edge for edge, block in steps if block.end <= start]
        after = [edge for edge, block in steps if block.start >= end]
        passed = {0, *(block.end for _, block in steps)}
        return Subnet((*before, skip, *after)) if {start, end} <= passed else None

    def range_of(self, subnet: Subnet) -> int:
        """The index of the range of the path's MACs; the first for everything cheaper."""
        ratio = sum(self._ratio(edge) for edge in subnet.edges)
        return max((k for k, (low, _, _) in enumerate(self._samplers) if ratio >= low - 1e-9), default=0)

    def samples(self, count: int, *, seed: int) -> Iterator[tuple[float, float, list[Subnet]]]:
        """Up to ``count`` different paths of each range: (lowest ratio, highest ratio, paths)."""
        random = SplitMix64(seed)
        for low, high, sampler in self._samplers:
            yield low, high, sorted(set(sampler.sample(count=count, random=random)))

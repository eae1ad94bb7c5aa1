"""Accuracy of the paths that two bundles of the same network share, by range of cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import Inputs
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Block, kind_named
from device_sdk.supernet.paths import WindowSampler, k_cheapest
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

RANGES, PATHS = 6, 6
_BATCH = 32


@dataclass(frozen=True)
class RangeChange:
    """Paths of one range of MACs, relative to the original path's, in a bundle without training and one with it.

    ``before``, ``after``: whether each answer was right, [paths · samples], in the same order.
    """

    low: float
    high: float
    before: npt.NDArray[np.bool_]
    after: npt.NDArray[np.bool_]

    @property
    def is_worse(self) -> bool:
        """The mean fell by more than a standard error of the paired difference."""
        change = self.after.astype(float) - self.before.astype(float)
        return -change.sum() > np.sqrt(np.square(change).sum()) + 1e-9


def changes(before: Path, after: Path, inputs: Inputs, labels: npt.NDArray[np.int64]) -> list[RangeChange]:
    """Run random paths of the blocks that both bundles have, in fp32 at the model's own input size.

    Args:
        before: the bundle packaged without training; ``after``: the same network, trained.
        labels: [count] class indices.
    """
    first, last = Bundle.open(before), Bundle.open(after)
    drawn = list(_drawn(_common(first.supernet, last.supernet)))
    return [
        RangeChange(low, high, _right(first, paths, inputs, labels), _right(last, paths, inputs, labels))
        for low, high, paths in drawn
    ]


def _common(first: Supernet, last: Supernet) -> Supernet:
    """The blocks with weights of ``last`` that ``first`` also has, in fp32."""
    known = {(block.id, block.kind, block.start, block.end) for block in first.blocks}
    shared = (block for block in last.blocks if (block.id, block.kind, block.start, block.end) in known)
    return Supernet(last.cut_points, [_in_fp32(block) for block in shared if not kind_named(block.kind).skip])


def _in_fp32(block: Block) -> Block:
    return msgspec.structs.replace(block, renditions=tuple(one for one in block.renditions if one.name == "fp32"))


def _drawn(supernet: Supernet) -> Iterator[tuple[float, float, list[Subnet]]]:
    """Up to ``PATHS`` different paths of each range of MACs: (lowest ratio, highest ratio, paths)."""
    blocks = {block.id: block for block in supernet.blocks}
    whole = sum(blocks[edge.block].macs for edge in supernet.original.edges)

    def ratio(edge: Edge) -> float:
        return blocks[edge.block].macs / whole

    lowest = k_cheapest(supernet, ratio, k=1)[0][0]
    bounds = np.linspace(lowest, 1.0, RANGES + 1)
    random = SplitMix64(0)
    for low, high in itertools.pairwise(bounds):
        sampler = WindowSampler(supernet, ratio, low=low - 1e-9, high=high + 1e-9)
        paths = sorted({*sampler.sample(count=PATHS, random=random)} - {supernet.original})
        if paths:
            yield float(low), float(high), paths


def _right(
    bundle: Bundle, paths: Iterable[Subnet], inputs: Inputs, labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    runtime = OnnxRuntime(threads=2)
    found = []
    for path in paths:
        session = runtime.load(bundle.stretch(path.edges))
        try:
            found += [session.run([batch])[-1].argmax(axis=1) for batch in _batches(inputs)]
        finally:
            session.close()
    answers = np.concatenate(found)
    return answers == np.tile(labels, len(answers) // len(labels))


def _batches(inputs: Inputs) -> Iterator[npt.NDArray[np.float32]]:
    for start in range(0, len(inputs), _BATCH):
        yield inputs.take(np.arange(start, min(start + _BATCH, len(inputs))))

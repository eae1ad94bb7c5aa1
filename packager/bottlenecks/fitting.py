"""Candidates for bottlenecks, fitted in closed form and judged by the answers behind them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from device_sdk.offload.quantisation import packed_bytes
from device_sdk.progress import Progress
from packager.bottlenecks.modules import BITS, Bottleneck, Components, components
from packager.bottlenecks.placing import Crossing
from packager.joining.maps import extents, picked
from packager.joining.networks import CutNetwork, Place

_ROWS = 8_192  # of a cut point's features, from all images together
_SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of a cut point's channels
_BATCH = 16


@dataclass(frozen=True)
class FittedBottleneck:
    """A bottleneck at ``cut``. ``loss``: mean total variation distance of the class probabilities behind it from those
    of the network; ``changed``: share of samples whose answer changes. Both with values of ``BITS`` bits, on judges.
    """

    cut: int
    channels: int
    module: Bottleneck
    crossing: Crossing
    loss: float = 1.0
    changed: float = 1.0

    @property
    def start(self) -> Place:
        """See ``packager.joining.training.Joint``."""
        return 0, self.cut

    @property
    def end(self) -> Place:
        """The same cut point: what is restored there goes on in the network."""
        return 0, self.cut


class BottleneckFitter:
    """Fits and judges bottlenecks of ``network``.

    Args:
        images: unlabelled, prepared [n, *input], for the fits.
        judges: further ones.
    """

    def __init__(
        self, network: CutNetwork, images: torch.Tensor, judges: torch.Tensor, *, seed: int, progress: Progress
    ) -> None:
        self._network, self._images, self._judges = network, images, judges
        self._seed, self._progress = seed, progress
        self._expected = network.answers_from(0, judges)

    @property
    def usable_cuts(self) -> tuple[int, ...]:
        """The cut points that may have a bottleneck: with one tensor of floats."""
        return self._network.inner

    @property
    def possible(self) -> dict[tuple[int, int], Crossing]:
        """Pairs of cut point and fewer channels than it has, and what would cross there."""
        found = {}
        for cut in self.usable_cuts:
            pixels, channels = extents(self._network.cuts[cut][0].shape)
            for count in (int(channels * share) for share in _SHARES):
                if count:
                    found[cut, count] = _crossing(self._network, cut, count * math.prod(pixels))
        return found

    @property
    def plain(self) -> list[Crossing]:
        """The cut points as they are, sent in ``BITS`` bits."""
        network = self._network
        cuts = [cut for cut in range(1, len(network.cuts) - 1) if len(network.cuts[cut]) == 1]
        return [_crossing(network, cut, network.cuts[cut][0].size) for cut in cuts]

    def candidates(self, wanted: Iterable[tuple[int, int]]) -> list[FittedBottleneck]:
        """Fitted and judged bottlenecks for each pair of cut point and channels."""
        by_cut: dict[int, list[int]] = {}
        for cut, channels in wanted:
            by_cut.setdefault(cut, []).append(channels)
        found: list[FittedBottleneck] = []
        images, judges = self._images, self._judges
        last = max(by_cut, default=0)
        with self._progress.task("fit bottlenecks", max(self._network.macs_until[last], 1)) as task:
            for block in self._network.blocks[:last]:
                images, judges = self._network.after(block, images), self._network.after(block, judges)
                if block.end in by_cut:
                    made = self._components(images)
                    fitted = [self._fitted(block.end, channels, made) for channels in by_cut[block.end]]
                    found += [self._judged(one, judges) for one in fitted]
                task.advance(block.macs)
        return found

    def judged(self, bottlenecks: Sequence[FittedBottleneck]) -> list[FittedBottleneck]:
        """The bottlenecks with their losses."""
        features = {cut: self._network.features_at(cut, self._judges) for cut in {one.cut for one in bottlenecks}}
        return [self._judged(one, features[one.cut]) for one in bottlenecks]

    def _judged(self, one: FittedBottleneck, features: torch.Tensor) -> FittedBottleneck:
        with torch.no_grad():
            restored = torch.cat([one.module(some) for some in features.split(_BATCH)])
        answers = self._network.answers_from(one.cut, restored)
        loss = float((answers - self._expected).abs().sum(1).mean()) / 2
        changed = float((answers.argmax(1) != self._expected.argmax(1)).float().mean())
        return replace(one, loss=loss, changed=changed)

    def _fitted(self, cut: int, channels: int, made: Components) -> FittedBottleneck:
        shape = self._network.cuts[cut][0].shape
        pixels, _ = extents(shape)
        module = made.bottleneck(channels, maps=len(shape) == 3)
        return FittedBottleneck(cut, channels, module, _crossing(self._network, cut, channels * math.prod(pixels)))

    def _components(self, features: torch.Tensor) -> Components:
        per_image = max(1, _ROWS // len(features))
        return components(picked(features, per_image, seed=self._seed).flatten(0, 1))


def _crossing(network: CutNetwork, cut: int, values: int) -> Crossing:
    return Crossing(network.depth(cut), packed_bytes(values, BITS))

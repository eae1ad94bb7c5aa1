"""The score that each way has on given images, without the link: both parts run here, in batches."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Literal, cast

import numpy as np

from benchmarks.split.networks import Judged
from benchmarks.split.ways import FLOAT_BITS, Way, along, subnet_of
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.deciding.promises import caution_of
from device_sdk.policies.measured_splits.measuring import JpegInputs, SplitScore
from device_sdk.policies.splitting.path_splits import PacketCoding, SplitCost
from device_sdk.session.samples import SampleChecker
from device_sdk.tasks import answer_task


class Judging:
    """Scores from 0 to 1 on one set of images; each way is computed once. ``certainty``: as for ``SplitScore``."""

    def __init__(self, workspace: Workspace, judged: Judged, *, certainty: float | None = None) -> None:
        manifest = workspace.bundle.manifest
        channels, height, width = manifest.cut_points[0].tensors[0].shape
        self._workspace, self._certainty = workspace, certainty
        self.jpegs = JpegInputs(
            judged.images, manifest.preprocessing.of_images(), input_shape=(channels, height, width)
        )
        prepare = SampleChecker(manifest).prepare
        self._inputs = np.concatenate([prepare(image) for image in judged.images])
        score = answer_task(manifest.task)
        full = along(workspace.bundle, "fp32")
        self._full = SplitScore(
            workspace, full, self._inputs, judged.targets, score, jpegs=self.jpegs, certainty=certainty
        )
        self.coding, self.drop, self.caution = self._full.coding, self._full.drop, self._full.caution
        self.score = cache(self._scored)

    def lost(self, way: Way) -> float:
        """Drop in the score by ``way`` against the full model."""
        return self._full.whole - self.score(way)

    def decision(self) -> OneDecision:
        """The judge of one decision, for which only the ways that it measures itself share the doubt."""
        return OneDecision(self._full, self._certainty)

    def keeps(self, way: Way, max_drop: float) -> bool:
        """True if ``way`` keeps the drop by what these images can tell, as the only way that is measured."""
        if way.sends == "images" or (way.bits == FLOAT_BITS and way.rendition == "fp32"):
            return True
        cost, alone = self._cost(way), self.decision()
        return alone.drop(cost) + alone.caution(cost) <= max_drop + 1e-9

    def _scored(self, way: Way) -> float:
        if way.sends == "images" or (way.bits == FLOAT_BITS and way.rendition == "fp32"):
            return self._full.whole
        return self._full.whole - self.drop(self._cost(way))

    def _cost(self, way: Way) -> SplitCost:
        """Parts of a way that change answers."""
        supernet = self._workspace.supernet
        if way.sends in ("jpeg", "images"):
            return SplitCost(
                way.position,
                0.0,
                0.0,
                0.0,
                0,
                tail=supernet.original.edges,
                sends=cast(Literal["jpeg", "images"], way.sends),
            )
        blocks = supernet.walk(subnet_of(self._workspace.bundle, way))
        head = tuple(edge for edge, block in blocks if block.end <= way.position)
        cuts = supernet.cut_points[way.position].tensors
        bits = () if way.sends == "nothing" else (way.bits,) * len(cuts)
        return SplitCost(
            way.position,
            0.0,
            0.0,
            0.0,
            0,
            tail=way.tail,
            bits=bits,
            head=head,
            per_channel=way.per_channel,
            compress=way.compress,
        )


class OneDecision:
    """A judge that shares its measurements with others and counts turns by itself, as a device that decides once.

    ``certainty``: as ``SplitScore`` takes it.
    """

    def __init__(self, score: SplitScore, certainty: float | None) -> None:
        self._score, self._certainty = score, certainty
        self._turns: dict[Hashable, int] = {}

    def drop(self, cost: SplitCost) -> float:
        """The drop in the score by a way; each that changes answers takes a turn."""
        found = self._score.drop(cost)
        if self._score.caution(cost):
            self._turns.setdefault(_key(cost), len(self._turns) + 1)
        return found

    def caution(self, cost: SplitCost) -> float:
        """The distance of the drop from its bound at the way's turn; 0 where nothing differs."""
        turn = self._turns.get(_key(cost))
        return 0.0 if turn is None else caution_of(self._score.differences(cost), self._certainty, turn=turn)

    def coding(self, position: int, bits: int, per_channel: bool) -> PacketCoding | None:
        """Costs of packets, as ``SplitScore`` has measured them."""
        return self._score.coding(position, bits, per_channel)


def _key(cost: SplitCost) -> Hashable:
    return cost.head, cost.tail, cost.bits, cost.per_channel, cost.sends

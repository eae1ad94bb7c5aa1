"""The score that each way has on given images, without the link: both parts run here, in batches."""

from __future__ import annotations

from functools import cache
from typing import Literal, cast

import numpy as np

from benchmarks.split.networks import Judged
from benchmarks.split.ways import FLOAT_BITS, Way, along, subnet_of
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.measured_splits.measuring import JpegInputs, SplitScore
from device_sdk.policies.scores import score_of
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.session.samples import SampleChecker


class Judging:
    """Scores from 0 to 1 on one set of images; each way is computed once. ``certainty``: as for ``SplitScore``."""

    def __init__(self, workspace: Workspace, judged: Judged, *, certainty: float | None = None) -> None:
        manifest = workspace.bundle.manifest
        channels, height, width = manifest.cut_points[0].tensors[0].shape
        self._workspace = workspace
        self.jpegs = JpegInputs(judged.images, manifest.preprocessing, input_shape=(channels, height, width))
        prepare = SampleChecker(manifest).prepare
        self._inputs = np.concatenate([prepare(image) for image in judged.images])
        score = score_of(manifest.task)
        full = along(workspace.bundle, "fp32")
        self._full = SplitScore(
            workspace, full, self._inputs, judged.targets, score, jpegs=self.jpegs, certainty=certainty
        )
        self.coding, self.drop, self.caution = self._full.coding, self._full.drop, self._full.caution
        self.score = cache(self._scored)

    def lost(self, way: Way) -> float:
        """Drop in the score by ``way`` against the full model."""
        return self._full.whole - self.score(way)

    def keeps(self, way: Way, max_drop: float) -> bool:
        """True if ``way`` keeps the drop by what these images can tell, with the caution of a chosen way."""
        if way.sends == "images" or (way.bits == FLOAT_BITS and way.rendition == "fp32"):
            return True
        cost = self._cost(way)
        return self.drop(cost) + self.caution(cost) <= max_drop + 1e-9

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

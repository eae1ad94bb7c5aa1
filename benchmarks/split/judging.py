"""The score that each way has on given images, without the link: both parts run here, in batches."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from benchmarks.split.networks import Judged
from benchmarks.split.ways import FLOAT_BITS, Way, along, subnet_of
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.measured_splits.measuring import JpegInputs, SplitScore
from device_sdk.policies.scores import score_of
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.plan import Edge


class Judging:
    """Scores from 0 to 1 on one set of images; each way is computed once."""

    def __init__(self, workspace: Workspace, judged: Judged) -> None:
        manifest = workspace.bundle.manifest
        channels, height, width = manifest.cut_points[0].tensors[0].shape
        self._workspace = workspace
        self.jpegs = JpegInputs(judged.images, manifest.preprocessing, input_shape=(channels, height, width))
        prepare = SampleChecker(manifest).prepare
        self._inputs = np.concatenate([prepare(image) for image in judged.images])
        score = score_of(manifest.task)
        full = along(workspace.bundle, "fp32")
        self._full = SplitScore(workspace, full, self._inputs, judged.targets, score, jpegs=self.jpegs)
        self.sent_error = self._full.sent_error
        self._dropped = cache(self._dropped_by)
        self.score = cache(self._scored)

    def lost(self, way: Way) -> float:
        """Drop in the score by ``way`` against the full model."""
        return self._full.whole - self.score(way)

    def drop(self, cost: SplitCost) -> float:
        """Drop in the score by the split of ``cost`` against the full model."""
        return self._dropped(cost.head, cost.tail, cost.bits, cost.position, cost.sends)

    def caution(self, cost: SplitCost) -> float:
        """See ``DropJudge``."""
        return self._full.caution(cost)

    def _dropped_by(
        self,
        head: tuple[Edge, ...],
        tail: tuple[Edge, ...],
        bits: tuple[int, ...],
        position: int,
        sends: Literal["activations", "jpeg"],
    ) -> float:
        return self._full.drop(SplitCost(position, 0.0, 0.0, 0.0, 0, tail=tail, bits=bits, head=head, sends=sends))

    def _scored(self, way: Way) -> float:
        if way.sends == "images" or (way.bits == FLOAT_BITS and way.rendition == "fp32"):
            return self._full.whole
        supernet = self._workspace.supernet
        blocks = supernet.walk(subnet_of(self._workspace.bundle, way))
        head = tuple(edge for edge, block in blocks if block.end <= way.position and way.sends != "jpeg")
        tail = supernet.original.edges if way.sends == "jpeg" else way.tail
        bits = () if way.sends == "jpeg" else (way.bits,) * len(supernet.cut_points[way.position].tensors)
        if way.sends == "nothing":
            bits = ()
        return self._full.whole - self._dropped(
            head, tail, bits, way.position, "jpeg" if way.sends == "jpeg" else "activations"
        )

"""The score that each way has on given images, without the link: both parts run here, in batches."""

from __future__ import annotations

from dataclasses import replace
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
        self.coding, self.drop, self.caution = self._full.coding, self._full.drop, self._full.caution
        self.score = cache(self._scored)

    def lost(self, way: Way) -> float:
        """Drop in the score by ``way`` against the full model."""
        return self._full.whole - self.score(way)

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
        sends: Literal["activations", "jpeg"] = "jpeg" if way.sends == "jpeg" else "activations"
        cost = SplitCost(way.position, 0.0, 0.0, 0.0, 0, tail=tail, bits=bits, head=head, sends=sends)
        return self._full.whole - self.drop(replace(cost, per_channel=way.per_channel))

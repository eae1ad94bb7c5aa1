"""The score that each way has on given images, without the link: both parts run here, in batches."""

from __future__ import annotations

from functools import cache

import numpy as np

from benchmarks.split.networks import Judged
from benchmarks.split.ways import FLOAT_BITS, Way, along
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.jpeg_inputs import JpegInputs
from device_sdk.policies.split_measuring import SplitAccuracy
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.session.samples import SampleChecker


class Judging:
    """Scores from 0 to 1 on one set of images; each way is computed once."""

    def __init__(self, workspace: Workspace, judged: Judged) -> None:
        manifest = workspace.bundle.manifest
        channels, height, width = manifest.cut_points[0].tensors[0].shape
        self._workspace, self._score = workspace, judged.score
        self.jpegs = JpegInputs(judged.images, manifest.preprocessing, input_shape=(channels, height, width))
        prepare = SampleChecker(manifest).prepare
        self._inputs = np.concatenate([prepare(image) for image in judged.images])
        self._of_rendition = cache(self._accuracy)
        self.score = cache(self._scored)

    def drop(self, way: Way) -> float:
        """What ``way`` loses against the full model."""
        return self._of_rendition("fp32").whole - self.score(way)

    def _accuracy(self, rendition: str) -> SplitAccuracy:
        subnet = along(self._workspace.bundle, rendition)
        return SplitAccuracy(self._workspace, subnet, self._inputs, self._score, jpegs=self.jpegs)

    def _scored(self, way: Way) -> float:
        accuracy = self._of_rendition(way.rendition)
        if way.sends in ("nothing", "images") or (way.bits == FLOAT_BITS and way.rendition == "fp32"):
            return accuracy.whole
        supernet = self._workspace.supernet
        tail = supernet.original.edges if way.sends == "jpeg" else way.tail
        bits = () if way.sends == "jpeg" else (way.bits,) * len(supernet.cut_points[way.position].tensors)
        sends = "jpeg" if way.sends == "jpeg" else "activations"
        cost = SplitCost(way.position, 0.0, 0.0, 0.0, 0, tail=tail, bits=bits, sends=sends)  # type: ignore[arg-type]
        return accuracy.whole - accuracy.drop(cost)

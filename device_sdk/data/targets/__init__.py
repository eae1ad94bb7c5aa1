"""Samples with targets for each pixel, object or word, from folders, zips and files: a file per kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.port import ReadBlob
from device_sdk.data.kinds.texts import TextPreparer
from device_sdk.data.preprocessing import AnyPreprocessing, Preprocessing
from device_sdk.data.sample_sets import SampleSet
from device_sdk.data.targets.boxes import classes_of_boxes, load_boxes
from device_sdk.data.targets.maps import load_maps
from device_sdk.data.targets.tags import classes_of_tags, load_tags
from device_sdk.data.targets.target_dataset import TargetDataset
from device_sdk.errors import UsageError

__all__ = ["LOADERS", "NAMED_BY", "SampleSet", "TargetDataset", "TargetsOf", "load_boxes", "load_maps", "load_tags"]


@dataclass(frozen=True)
class TargetsOf:
    """A model whose targets are loaded: its classes, the shape of its input, and what prepares its samples."""

    class_names: Sequence[str]
    input_shape: tuple[int, ...]
    preprocessing: AnyPreprocessing
    read_blob: ReadBlob

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of its images (UsageError)."""
        if not isinstance(self.preprocessing, Preprocessing):
            raise UsageError("maps and boxes are of images; this model takes other samples")
        return self.input_shape[1], self.input_shape[2]


def _load_tags(reference: str, model: TargetsOf, limit: int | None) -> SampleSet:
    preparer = preparer_of(model.preprocessing, model.input_shape, model.read_blob)
    if not isinstance(preparer, TextPreparer):
        raise UsageError("classes of words are of texts; this model takes other samples")
    return load_tags(reference, model.class_names, preparer.tokenizer, model.input_shape[-1], limit)


# by the kind of a task: reference, model, limit
LOADERS: Mapping[str, Callable[[str, TargetsOf, int | None], TargetDataset | SampleSet]] = {
    "segmentation": lambda reference, model, limit: load_maps(reference, model.class_names, model.size, limit),
    "detection": lambda reference, model, limit: load_boxes(reference, model.class_names, model.size, limit),
    "token_classification": _load_tags,
}
NAMED_BY: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "detection": classes_of_boxes,
    "token_classification": classes_of_tags,
}
"""Tasks whose data name their classes."""

"""The samples of a job: loaded by their kind and task, their labels as positions in the model's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch

from device_sdk.bundles.manifest import TaskKind
from device_sdk.data.class_names import ClassNames, require_distinct
from device_sdk.data.datasets import ImageDataset, as_positions
from device_sdk.data.kinds import preparer_of
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.data.targets import LOADERS, NAMED_BY, SampleSet, TargetDataset, TargetsOf
from device_sdk.data.targets.values import NAMES, TABLES
from device_sdk.errors import DataError, UsageError
from device_sdk.progress import Progress
from packager.data.image_set import Images, ImageSet, load_images
from packager.data.prepared_set import LabelMap, PreparedSet, load_prepared
from packager.inputs.labels import IMAGENET
from packager.inputs.loaded_model import LoadedModel
from packager.tasks import (
    Classification,
    Detection,
    Embedding,
    LearningTask,
    MultiLabel,
    Regression,
    Segmentation,
    TokenClassification,
)

_IMAGENET_OUTPUTS = 1000

Samples = ImageDataset | TargetDataset | ImageSet | PreparedSet
TASKS: dict[TaskKind, LearningTask] = {
    "classification": Classification(),
    "segmentation": Segmentation(),
    "detection": Detection(),
    "token_classification": TokenClassification(),
    "multilabel": MultiLabel(),
    "regression": Regression(),
    "embedding": Embedding(),
}


def loaded_data(
    task: TaskKind, model: LoadedModel, training: str, validation: str, progress: Progress
) -> tuple[LoadedModel, Samples, Samples, tuple[str, ...]]:
    """The model with its classes, the samples for training and validation, and notes on what was left out."""
    if task in LOADERS:
        return _with_targets(task, model, training, validation)
    if task != "classification":
        return _with_values(task, model, training, validation, progress)
    labels = Labels(model)
    trained, training_notes = load_samples_of(training, model, labels, progress)
    validated, validation_notes = load_samples_of(validation, model, labels, progress)
    _require_labels(validated, validation)
    class_names = labels.names or ()
    # an unlabelled set has no names of its own
    named = replace(model, class_names=class_names), replace(trained, class_names=class_names)
    return *named, validated, (*training_notes, *validation_notes)


def _with_targets(
    task: TaskKind, model: LoadedModel, training: str, validation: str
) -> tuple[LoadedModel, Samples, Samples, tuple[str, ...]]:
    """As ``loaded_data``, of samples with maps, boxes or classes of words.

    Images are taken as a whole, since targets are of all that they show.
    """
    own, notes = model.preprocessing, tuple[str, ...]()
    names = model.class_names or (NAMED_BY[task](training) if task in NAMED_BY else ())
    if not names:
        raise UsageError("maps do not name their classes", hint="--classes FILE: one per line, in the order of numbers")
    if isinstance(own, Preprocessing) and own.crop is not None:
        own, notes = msgspec.structs.replace(own, crop=None), ("images are not cropped: targets are of whole images",)
    owner = TargetsOf(names, model.input_shape, own, lambda name: model.blobs[name])
    trained, validated = (_prepared(LOADERS[task](one, owner, None), owner) for one in (training, validation))
    whole = replace(model, preprocessing=own, class_names=names)
    return whole, trained, validated, (*notes, *trained.notes, *validated.notes)


def _with_values(
    task: TaskKind, model: LoadedModel, training: str, validation: str, progress: Progress
) -> tuple[LoadedModel, Samples, Samples, tuple[str, ...]]:
    """As ``loaded_data``, of samples whose labels are written values, or have none (``own_answers``)."""
    found, written, notes = [], [], tuple[str, ...]()
    for reference in (training, validation):
        raw = _WrittenLabels()
        samples, more = load_samples_of(reference, model, raw, progress)
        if task in TABLES:
            _require_labels(samples, reference)
        found.append(samples)
        written.append(raw.names)
        notes = (*notes, *more)
    names = model.class_names or (NAMES[task](written[0]) if task in NAMES else ())
    if task in TABLES:
        tables = [TABLES[task](labels, names) for labels in written]
        found = [replace(one, labels=table[one.labels]) for one, table in zip(found, tables, strict=True)]
    found = [replace(one, class_names=names) for one in found]
    return replace(model, class_names=names), found[0], found[1], notes


class _WrittenLabels:
    """The labels of a data set as they are written, as a map from themselves."""

    names: tuple[str, ...] = ()

    def __call__(self, classes: Sequence[str], indexed: bool) -> tuple[tuple[str, ...], Sequence[int]]:
        """See ``load_images``."""
        self.names = tuple(classes)
        return self.names, range(len(classes))


def _prepared(found: TargetDataset | SampleSet, owner: TargetsOf) -> TargetDataset | PreparedSet:
    """Images as they are; samples of other kinds prepared."""
    if isinstance(found, TargetDataset):
        return found
    preparer = preparer_of(owner.preprocessing, owner.input_shape, owner.read_blob)
    inputs = preparer.inputs(found.samples).take(np.arange(len(found)))
    return PreparedSet(inputs, found.labels, found.class_names, (*found.notes, *preparer.notes(found.samples)))


class Labels:
    """Maps classes of data sets to positions in the model's. If the model names none, the first set defines them."""

    def __init__(self, model: LoadedModel) -> None:
        self.names = model.class_names
        self._model = model

    def __call__(self, classes: Sequence[str], indexed: bool) -> tuple[tuple[str, ...], Sequence[int]]:
        """See ``load_images``."""
        if not classes:
            return self.names or (), ()
        if indexed:
            count = (
                len(self.names) if self.names is not None else output_count(self._model) or max(map(int, classes)) + 1
            )
            positions = as_positions(classes, count=count)
            self.names = self.names or tuple(map(str, range(count)))
            return self.names, positions
        if self.names is None:
            self.names = _names_from_data(tuple(classes), output_count(self._model))
        return self.names, ClassNames(self.names, self._model.class_ids).positions(classes)


def load_samples_of(
    reference: str, model: LoadedModel, labels: LabelMap, progress: Progress
) -> tuple[Images | PreparedSet, tuple[str, ...]]:
    """The samples of the model's kind, and notes on what was left out."""
    preprocessing, shape = model.preprocessing, model.input_shape
    if isinstance(preprocessing, Preprocessing):
        found = load_images(reference, preprocessing, size=(shape[1], shape[2]), label=labels, progress=progress)
        return found.images, found.report.notes
    prepared = load_prepared(reference, preprocessing, shape, model.blobs, label=labels, progress=progress)
    return prepared, prepared.notes


def _require_labels(validation: Images | PreparedSet, reference: str) -> None:
    if (validation.labels < 0).any():
        raise DataError(
            f"the validation samples of {reference} have no labels",
            hint="put them into one folder per class, or list them in a CSV file with a column label",
        )


def _names_from_data(found: tuple[str, ...], outputs: int) -> tuple[str, ...]:
    """The data's classes, sorted by name, for a model that does not name its own."""
    require_distinct(found)
    if outputs not in (0, len(found)):
        listed = IMAGENET if outputs == _IMAGENET_OUTPUTS else "FILE"
        raise DataError(
            f"the model has {outputs} outputs, the data has {len(found)} classes",
            hint=f"--classes {listed} says which classes the outputs are; the data may have some of them only",
        )
    return found


def output_count(model: LoadedModel, task: TaskKind = "classification") -> int:
    """The number of classes that the model answers for; 0 where its answer is of another task."""
    with torch.no_grad():
        answer = model.module(model.noise(1))
    return TASKS[task].class_count(tuple(answer.shape[1:])) if isinstance(answer, torch.Tensor) else 0

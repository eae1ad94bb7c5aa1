"""Loads a packaging job from the names given on the command line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from device_sdk.data.class_names import ClassNames, require_distinct
from device_sdk.data.datasets import as_positions
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import DataError, UsageError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import IDENTIFIER
from packager.data.image_set import Images, Loaded, load_images
from packager.inputs.answer_checks import check_answers
from packager.inputs.class_lists import IMAGENET, load_classes
from packager.inputs.job import Job
from packager.inputs.label_doubts import JUDGED, label_doubts
from packager.inputs.model_loader import LoadedModel, load_model
from packager.inputs.pixels import Pixels
from packager.inputs.recipe import load_recipe
from packager.inputs.weights import read_state_dict

_IMAGENET_OUTPUTS = 1000


def load_job(
    specification: str,
    *,
    training: str,
    validation: str,
    weights: Path | None = None,
    input_shape: tuple[int, int, int] | None = None,
    name: str | None = None,
    version: int = 1,
    recipe_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    classes: str | None = None,
    pixels: Pixels | None = None,
    profile: Path | None = None,
    progress: Progress,
) -> Job:
    """Load the recipe, the model and the data, cheapest first.

    Images are cropped and resized to the model's input, and labelled by its classes if the model or ``classes`` (see
    ``load_classes``) names them. The data may have a subset of the classes. ``pixels``: see ``load_model``.
    ``profile``: a device's profile of an earlier bundle of the model, as its state folder holds it.

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: an argument is invalid, or refers to nothing usable.
    """
    if name is not None and not IDENTIFIER.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a bundle",
            hint="up to 128 letters, digits, _ . and -, a letter or digit first",
        )
    recipe = load_recipe(recipe_path, **(overrides or {}))
    branches = None
    if recipe.branch_weights is not None:
        branches = read_state_dict((recipe_path.parent if recipe_path else Path()) / recipe.branch_weights)
    model = load_model_of_job(specification, weights=weights, input_shape=input_shape, classes=classes, pixels=pixels)
    labels = _Labels(model)
    trained = _load(training, model, labels, progress)
    validated = _load(validation, model, labels, progress)
    _require_labels(validated.images, validation)
    class_names = labels.names or ()
    job = Job(
        model=replace(model, class_names=class_names),
        training=replace(trained.images, class_names=class_names),  # an unlabelled set has no names of its own
        training_reference=_shown(training),
        validation=validated.images,
        validation_reference=_shown(validation),
        notes=(*model.notes, *trained.report.notes, *validated.report.notes),
        recipe=recipe,
        name=name or _name_after(model.name),
        version=version,
        weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        branch_weights=branches,
        device_profile=None if profile is None else _read_profile(profile),
    )
    doubts = label_doubts(job.model, *job.held_out(JUDGED), weights_given=weights is not None)
    return replace(job, notes=(*job.notes, *doubts))


def _read_profile(path: Path) -> Profile:
    try:
        return decode_json(path.read_bytes(), Profile)
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not the profile of a device: {error}") from error


def load_model_of_job(
    specification: str,
    *,
    weights: Path | None = None,
    input_shape: tuple[int, int, int] | None = None,
    classes: str | None = None,
    pixels: Pixels | None = None,
) -> LoadedModel:
    """The model as in a job: its preprocessing resizes images to its input, ``classes`` names its outputs.

    Its answers to noise are checked (see ``check_answers``).

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: as ``load_job``.
    """
    listed = None if classes is None else load_classes(classes)
    model = load_model(specification, weights=weights, input_shape=input_shape, pixels=pixels)
    size = (model.input_shape[1], model.input_shape[2])
    notes = check_answers(model.module, model.input_shape)
    model = replace(model, preprocessing=_resizing(model.preprocessing, size), notes=notes)
    if listed is None:
        return model
    known = listed.for_model(_outputs(model), model.class_names, reference=classes or "")
    return replace(model, class_names=known.names, class_ids=known.ids)


def load_samples(
    reference: str, model: LoadedModel, *, count: int, weights_given: bool, progress: Progress
) -> tuple[torch.Tensor, int, tuple[str, ...]]:
    """Up to ``count`` preprocessed images [count, *input], the size of the data set, and notes on what was left out,
    and on labels that the model contradicts (see ``label_doubts``).

    Raises:
        DataError: as ``load_job``, or the classes are not the model's.
    """
    labels = _Labels(model)
    loaded = _load(reference, model, labels, progress)
    shown, recipe = _shown(reference), load_recipe(None, steps=0)
    known = replace(model, class_names=labels.names or ())
    job = Job(known, loaded.images, shown, loaded.images, shown, recipe, _name_after(model.name))
    doubts: tuple[str, ...] = ()
    if (loaded.images.labels >= 0).all():
        doubts = label_doubts(known, *job.held_out(JUDGED), weights_given=weights_given)
    return job.training_samples(count), len(loaded.images), (*loaded.report.notes, *doubts)


def _name_after(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).lstrip("_.-")[:128] or "model"


def _resizing(preprocessing: Preprocessing, size: tuple[int, int]) -> Preprocessing:
    return msgspec.structs.replace(preprocessing, resize=preprocessing.resize or size)


def _outputs(model: LoadedModel) -> int:
    """The number of the model's outputs per image."""
    with torch.no_grad():
        answer = model.module(torch.zeros(1, *model.input_shape))
    return int(answer.shape[-1]) if isinstance(answer, torch.Tensor) and answer.dim() == 2 else 0


class _Labels:
    """Maps classes of data sets to positions in the model's. If the model names none, the first set defines them."""

    def __init__(self, model: LoadedModel) -> None:
        self.names = model.class_names
        self._model = model

    def __call__(self, classes: Sequence[str], indexed: bool) -> tuple[tuple[str, ...], Sequence[int]]:
        """See ``load_images``."""
        if not classes:
            return self.names or (), ()
        if indexed:
            count = len(self.names) if self.names is not None else _outputs(self._model) or max(map(int, classes)) + 1
            positions = as_positions(classes, count=count)
            self.names = self.names or tuple(map(str, range(count)))
            return self.names, positions
        if self.names is None:
            self.names = _names_from_data(tuple(classes), _outputs(self._model))
        return self.names, ClassNames(self.names, self._model.class_ids).positions(classes)


def _load(reference: str, model: LoadedModel, labels: _Labels, progress: Progress) -> Loaded:
    size = (model.input_shape[1], model.input_shape[2])
    return load_images(reference, model.preprocessing, size=size, label=labels, progress=progress)


def _require_labels(validation: Images, reference: str) -> None:
    if (validation.labels < 0).any():
        raise DataError(
            f"the validation images of {reference} have no labels",
            hint="put them into one folder per class, or list them in a CSV file with the columns image,label",
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


def _shown(reference: str) -> str:
    """The reference without its folder, which must not be stored in the bundle."""
    path, separator, part = reference.partition("#")
    return Path(path).name + separator + part

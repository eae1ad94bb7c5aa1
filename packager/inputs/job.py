"""A packaging job: model, data and recipe, loaded by the names of the command line, and all derived from them."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from device_sdk import __version__
from device_sdk.bundles.manifest import TaskKind
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import IDENTIFIER
from packager.data.batches import WHOLE, BatchSource, Share
from packager.data.image_set import BatchDecoder, ImageSet, worker_count
from packager.data.prepared_set import PreparedSet
from packager.inputs.answer_checks import NOISE_SAMPLES, check_answers
from packager.inputs.job_data import TASKS, Labels, Samples, load_samples_of, loaded_data, output_count
from packager.inputs.labels import JUDGED, label_doubts, load_classes
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels
from packager.inputs.recipe import Recipe, load_recipe
from packager.inputs.weights import BranchWeights, read_state_dict, tensors_digest
from packager.tasks import Classification, LearningTask
from packager.torch_device import resolve_device

_TOGETHER = 64  # samples
_NO_LOGITS = ("regression", "embedding")


@dataclass(frozen=True)
class Job:
    """Inputs to packaging: the model, its data, the recipe and the bundle's name.

    ``training`` and ``validation`` include the caller's reference. Negative training labels mean unlabelled: the full
    model's predictions are used instead. ``notes``: sentences on data left out by loading. ``device_profile``: measured
    latencies of an earlier bundle of the model, by which branches of exits survive.
    """

    model: LoadedModel
    training: Samples
    training_reference: str
    validation: Samples
    validation_reference: str
    recipe: Recipe
    name: str
    version: int = 1
    weights_sha256: str | None = None
    branch_weights: BranchWeights | None = None
    task: LearningTask = field(default_factory=Classification)
    notes: tuple[str, ...] = ()
    device_profile: Profile | None = None

    def description(self) -> dict[str, Any]:
        """Everything that the bundle depends on: jobs with equal descriptions make equal bundles."""
        profile = self.device_profile
        return {
            "name": self.name,
            "version": self.version,
            "task": self.task.kind,
            "model": self.model.name,
            "module": _module_digest(self.model.module),
            "weights": self.weights_sha256,
            "training data": _digest(self.training),
            "validation data": _digest(self.validation),
            "recipe": self.recipe.choices(),
            "device profile": None if profile is None else hashlib.sha256(msgspec.json.encode(profile)).hexdigest(),
            "branch weights": tensors_digest(self.branch_weights or {}),
            "pathweave": __version__,
        }

    def batches(self, share: Share = WHOLE, *, most: int | None = None, distortion: float = 0.0) -> BatchSource:
        """The training data as endless batches of at most ``most`` samples, of each the ``share`` of one process.

        ``distortion``: of the images of a classifier, from 0 to 1 (``batches.distorted``).
        """
        recipe = self.recipe
        return BatchSource(
            self.training,
            self.model.preprocessing,
            batch=min(recipe.largest_batch, most or recipe.largest_batch),
            seed=recipe.seed,
            flip=recipe.flip,
            crop=recipe.crop,
            variants=recipe.variants,
            distortion=distortion,
            share=share,
            task=self.task,
            labeller=None if self._labelled() else _Labeller(self.model.module, resolve_device(recipe.device)),
        )

    def prepared(self, *, count: int | None = None) -> npt.NDArray[np.float32]:
        """Validation images, preprocessed [count, *input]; all, or ``count`` spread evenly."""
        return self._prepared(self.validation, _spread(len(self.validation), count))

    def validation_batches(
        self, *, count: int | None = None, batch: int = 64
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]:
        """Validation samples in batches: preprocessed images, labels [n, …]; without corrupt ones.

        All in stored order, or ``count`` spread evenly.
        """
        return self._batches(self.validation, count, batch)

    def training_batches(
        self, *, count: int, batch: int = 64
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]:
        """Up to ``count`` training samples as ``validation_batches`` gives them: not augmented."""
        return self._batches(self.training, count, batch)

    def _batches(
        self, samples: Samples, count: int | None, batch: int
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]:
        chosen = _spread(len(samples), count)
        parts = [chosen[first : first + batch] for first in range(0, len(chosen), batch)]
        if not isinstance(samples, ImageSet):
            for part in parts:
                yield self._prepared(samples, part), samples.labels[part]
            return
        decoder = BatchDecoder(samples, dict(enumerate(parts)).get, fill=False, workers=worker_count())
        for step in range(len(parts)):
            decoded = decoder.batch(step)
            if len(decoded.positions):
                yield self._as_input(decoded.pixels), samples.labels[decoded.positions]

    def training_samples(self, count: int) -> torch.Tensor:
        """Up to ``count`` training images, preprocessed [count, *input], spread evenly, not augmented."""
        return torch.from_numpy(self._prepared(self.training, _spread(len(self.training), count)))

    def training_pixels(self, count: int) -> npt.NDArray[np.uint8]:
        """Up to ``count`` training images as the model sees them, spread evenly: [count, height, width, channels]."""
        samples, chosen = self.training, _spread(len(self.training), count)
        if isinstance(samples, PreparedSet):
            raise UsageError("pixels are of images; this model takes others", hint="leave out what needs them")
        return samples.read(chosen, fill=True).pixels if isinstance(samples, ImageSet) else samples.images[chosen]

    def held_out(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Up to ``count`` validation samples, spread evenly: preprocessed images, labels [count, …]."""
        images, labels = zip(*self.validation_batches(count=count), strict=True)
        return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels))

    def own_answers(self, samples: Samples) -> Samples:
        """``samples`` with the model's answers as their targets."""
        found = []
        with torch.inference_mode():
            for at in range(0, len(samples), _TOGETHER):
                chosen = np.arange(at, min(at + _TOGETHER, len(samples)))
                found.append(self.model.module(torch.from_numpy(self._prepared(samples, chosen))).numpy())
        return replace(samples, labels=np.concatenate(found))

    def _labelled(self) -> bool:
        if self.task.kind != "classification":
            return True
        return bool((self.training.labels.astype(np.int64) >= 0).all())

    def _prepared(self, samples: Samples, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The samples at ``chosen``, preprocessed; a corrupt one is replaced by the next readable one."""
        if isinstance(samples, PreparedSet):
            return samples.inputs[chosen]
        if not isinstance(samples, ImageSet):
            return self._as_input(samples.images[chosen])
        decoded = samples.read(chosen, fill=True)
        samples.note(decoded.corrupt)
        return self._as_input(decoded.pixels)

    def _as_input(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        preprocessing, (channels, height, width) = self.model.preprocessing, self.model.input_shape
        assert isinstance(preprocessing, Preprocessing)  # the samples are images
        return prepare(pixels, preprocessing, input_shape=(channels, height, width))


class _Labeller:
    """Labels prepared images with the full model's predictions, for unlabelled data."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = copy.deepcopy(module).to(device).eval()  # a copy, since the job's own may move to another device
        self._device = device

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._module(images.to(self._device)).argmax(1).cpu()


def _spread(total: int, count: int | None) -> npt.NDArray[np.int64]:
    return np.linspace(0, total - 1, total if count is None else min(count, total), dtype=np.int64)


def _module_digest(module: nn.Module) -> str:
    """A digest of layers and weights, to detect a model that changed under the same name."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    return hashlib.sha256(f"{layers}{tensors_digest(module.state_dict())}".encode()).hexdigest()


def _digest(dataset: Samples) -> str:
    if isinstance(dataset, ImageSet | PreparedSet):
        return dataset.digest()
    digest = hashlib.sha256(repr((dataset.images.shape, dataset.class_names)).encode())
    digest.update(np.ascontiguousarray(dataset.images).data)
    digest.update(dataset.labels.tobytes())
    return digest.hexdigest()


def load_job(
    specification: str,
    *,
    training: str,
    validation: str,
    weights: Path | None = None,
    input_shape: tuple[int, ...] | None = None,
    name: str | None = None,
    version: int = 1,
    recipe_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    classes: str | None = None,
    pixels: Pixels | None = None,
    profile: Path | None = None,
    task: TaskKind = "classification",
    progress: Progress,
) -> Job:
    """Load the recipe, the model and the data, cheapest first.

    Images are cropped and resized to the model's input, and labelled by its classes if the model or ``classes`` (see
    ``load_classes``) names them. The data may have a subset of the classes. ``pixels``: see ``load_model``. Maps and
    boxes (``task``) are read as ``device_sdk.data.targets`` says; their images are not cropped.
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
    model = load_model_of_job(
        specification, weights=weights, input_shape=input_shape, classes=classes, pixels=pixels, task=task
    )
    model, trained, validated, data_notes = loaded_data(task, model, training, validation, progress)
    job = Job(
        model=model,
        training=trained,
        training_reference=_shown(training),
        validation=validated,
        validation_reference=_shown(validation),
        notes=(*model.notes, *data_notes),
        recipe=recipe,
        name=name or _name_after(model.name),
        version=version,
        weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        branch_weights=branches,
        device_profile=None if profile is None else _read_profile(profile),
        task=TASKS[task].with_classes(model.class_names or ()),
    )
    if task == "embedding":
        return replace(job, training=job.own_answers(trained), validation=job.own_answers(validated))
    if task != "classification":
        return job
    known = weights is not None or model.weights_inside
    doubts = label_doubts(job.model, *job.held_out(JUDGED), weights_given=known)
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
    input_shape: tuple[int, ...] | None = None,
    classes: str | None = None,
    pixels: Pixels | None = None,
    task: TaskKind = "classification",
) -> LoadedModel:
    """The model as in a job: its preprocessing resizes images to its input, ``classes`` names its outputs.

    Its answers to noise are checked (see ``check_answers``).

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: as ``load_job``.
    """
    listed = None if classes is None else load_classes(classes)
    model = load_model(specification, weights=weights, input_shape=input_shape, pixels=pixels)
    judged = TASKS[task].kind not in _NO_LOGITS
    notes = (*model.notes, *check_answers(model.module, model.noise(NOISE_SAMPLES), logits=judged))
    model = replace(_resizing(model), notes=notes)
    if listed is None:
        return model
    known = listed.for_model(output_count(model, task), model.class_names, reference=classes or "")
    return replace(model, class_names=known.names, class_ids=known.ids)


def _resizing(model: LoadedModel) -> LoadedModel:
    """The model with images that are resized to its input."""
    own = model.preprocessing
    if not isinstance(own, Preprocessing):
        return model
    return replace(model, preprocessing=msgspec.structs.replace(own, resize=own.resize or model.input_shape[1:]))


def load_samples(
    reference: str,
    model: LoadedModel,
    *,
    count: int,
    weights_given: bool,
    task: TaskKind = "classification",
    progress: Progress,
) -> tuple[torch.Tensor, int, tuple[str, ...]]:
    """Up to ``count`` preprocessed images [count, *input], the size of the data set, and notes on what was left out,
    and on labels that the model contradicts (see ``label_doubts``).

    Raises:
        DataError: as ``load_job``, or the classes are not the model's.
    """
    shown, recipe = _shown(reference), load_recipe(None, steps=0)
    if task != "classification":
        model, samples, _, notes = loaded_data(task, model, reference, reference, progress)
        other = Job(model, samples, shown, samples, shown, recipe, _name_after(model.name), task=TASKS[task])
        return other.training_samples(count), len(samples), notes
    labels = Labels(model)
    samples, notes = load_samples_of(reference, model, labels, progress)
    known = replace(model, class_names=labels.names or ())
    job = Job(known, samples, shown, samples, shown, recipe, _name_after(model.name))
    doubts: tuple[str, ...] = ()
    if (samples.labels >= 0).all():
        weights_given = weights_given or model.weights_inside
        doubts = label_doubts(known, *job.held_out(JUDGED), weights_given=weights_given)
    return job.training_samples(count), len(samples), (*notes, *doubts)


def _name_after(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).lstrip("_.-")[:128] or "model"


def _shown(reference: str) -> str:
    """The reference without its folder, which must not be stored in the bundle."""
    path, separator, part = reference.partition("#")
    return Path(path).name + separator + part

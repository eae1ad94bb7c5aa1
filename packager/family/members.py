"""The members of a family: pretrained networks of one task that take the same images and answer with the same classes.

Each is packaged by itself, at the input size of the largest. What differs between members is folded into their modules:
another normalisation of pixels into the first block, another order of the classes into the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import UsageError
from device_sdk.progress import Progress
from packager.inputs.job import Job, load_job, load_model_of_job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.pixels import Pixels
from packager.inputs.weights import tensors_digest
from packager.supernet.blocks.trainable import count_macs

MOST_MEMBERS = 8


@dataclass(frozen=True)
class MemberSource:
    """The origin of a member: its specification, as of ``load_model``, and the file of its weights."""

    specification: str
    weights: Path | None = None

    @classmethod
    def parse(cls, text: str) -> MemberSource:
        """``SPECIFICATION`` or ``SPECIFICATION=WEIGHTS``.

        Raises:
            UsageError: the file of the weights does not exist.
        """
        specification, _, weights = text.partition("=")
        if weights and not Path(weights).is_file():
            raise UsageError(f"there is no weights file {weights} for the member {specification}")
        return cls(specification, Path(weights) if weights else None)


@dataclass(frozen=True)
class FamilyMember:
    """A member's name in the bundle, the job that packages it alone, and its multiply-accumulates per image.

    ``own_size``: height and width of the images that it was trained for, at most those of the family.
    """

    name: str
    job: Job
    macs: int
    own_size: tuple[int, ...]


def load_family(sources: Sequence[MemberSource], *, progress: Progress, **options: Any) -> tuple[FamilyMember, ...]:
    """The members, the one with the most multiply-accumulates first; ``options``: of ``load_job``, for all members.

    The family takes images of the largest input size among its members, prepared as for the largest member.

    Raises:
        UsageError: fewer than two members, too many, or one of them twice.
        DataError, ModelLoadError, WeightsError: as ``load_job``; or the classes are not those of the others.
    """
    models = load_models(sources, **{name: options.get(name) for name in ("classes", "pixels", "input_shape")})
    first, *others = models
    largest = load_job(
        first.source.specification,
        **(options | {"weights": first.source.weights, "input_shape": first.model.input_shape}),
        progress=progress,
    )
    members = [FamilyMember(first.name, largest, first.macs, first.own_size)]
    for one in others:
        job = replace(
            largest,
            model=as_member(one.model, largest.model),
            weights_sha256=_digest(one.source.weights),
            notes=one.model.notes,
        )
        members.append(FamilyMember(one.name, job, one.macs, one.own_size))
    return tuple(members)


@dataclass(frozen=True)
class FamilyModel:
    """A member's model as it was loaded; ``name``, ``macs`` and ``own_size`` as of a ``FamilyMember``."""

    name: str
    source: MemberSource
    model: LoadedModel
    macs: int
    own_size: tuple[int, ...]


def load_models(
    sources: Sequence[MemberSource],
    *,
    classes: str | None = None,
    pixels: Pixels | None = None,
    input_shape: tuple[int, int, int] | None = None,
) -> tuple[FamilyModel, ...]:
    """The models for inputs of one shape, that of the largest input unless given, the one of most work first.

    Raises: as ``load_family``, but for data and classes.
    """
    if not 2 <= len(sources) <= MOST_MEMBERS:
        raise UsageError(f"a family has 2 to {MOST_MEMBERS} members, not {len(sources)}")

    def load(source: MemberSource, shape: tuple[int, ...] | None) -> LoadedModel:
        return load_model_of_job(
            source.specification, weights=source.weights, input_shape=shape, classes=classes, pixels=pixels
        )

    shapes = [load(one, None).image_shape for one in sources]
    shape = input_shape or max(shapes, key=lambda one: one[1] * one[2])
    models = [load(one, shape) for one in sources]
    _refuse_twins(models)
    macs = [count_macs(model.module, model.input_shape) for model in models]
    order = sorted(range(len(models)), key=lambda place: -macs[place])
    names = _names([models[place].name for place in order])
    sizes = [(min(height, shape[1]), min(width, shape[2])) for _, height, width in shapes]
    return tuple(
        FamilyModel(name, sources[place], models[place], macs[place], sizes[place])
        for name, place in zip(names, order, strict=True)
    )


def as_member(model: LoadedModel, largest: LoadedModel) -> LoadedModel:
    """``model`` for images that are prepared as for ``largest``, with answers in the order of its classes.

    Raises:
        UsageError: it has other classes, or another number of channels.
    """
    if model.input_shape != largest.input_shape:
        raise UsageError(
            f"{model.name} takes inputs of {list(model.input_shape)}, {largest.name} of {list(largest.input_shape)}"
        )
    module, notes = model.module, list(model.notes)
    order = _class_order(model, largest)
    if order is not None:
        module, notes = Reordered(module, order), [*notes, f"{model.name}: classes were put in the order of the family"]
    scale, shift = difference(largest.preprocessing.of_images(), model.preprocessing.of_images())
    if not (torch.allclose(scale, torch.ones(())) and torch.allclose(shift, torch.zeros(()), atol=1e-6)):
        module = Folded(module, scale, shift)
    own, shared = model.preprocessing.of_images(), largest.preprocessing.of_images()
    if (own.interpolation, own.crop) != (shared.interpolation, shared.crop):
        notes.append(f"{model.name}: images are resized and cropped as for {largest.name}, not as for itself")
    return replace(
        model,
        module=module.eval(),
        preprocessing=shared,
        class_names=largest.class_names,
        class_ids=largest.class_ids,
        notes=tuple(notes),
    )


def difference(family: Preprocessing, own: Preprocessing) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift [channels] that turn pixels as ``family`` prepares them into pixels as ``own`` does.

    Raises:
        UsageError: the numbers of channels differ.
    """
    if family.channels != own.channels:
        raise UsageError(f"members take images of {family.channels} and of {own.channels} channels")
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (family.mean, family.std))
    own_mean, own_std = (torch.tensor(values, dtype=torch.float64) for values in (own.mean, own.std))
    ratio = own.scale / family.scale
    return (std * ratio / own_std).float(), ((mean * ratio - own_mean) / own_std).float()


class Folded(nn.Module):
    """A network behind a change of its input's normalisation; ``scale``, ``shift``: [channels]."""

    def __init__(self, network: nn.Module, scale: torch.Tensor, shift: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("scale", scale[:, None, None].clone())
        self.register_buffer("shift", shift[:, None, None].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, *input] → [batch, classes]."""
        answer: torch.Tensor = self.network(images * self.scale + self.shift)
        return answer


class Reordered(nn.Module):
    """A network whose answers are put in another order of the classes; ``order``: [classes], places in its own."""

    def __init__(self, network: nn.Module, order: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("order", order.clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, *input] → [batch, classes]."""
        answer: torch.Tensor = self.network(images).index_select(1, self.order)
        return answer


def _class_order(model: LoadedModel, largest: LoadedModel) -> torch.Tensor | None:
    """For each class of ``largest`` its place among those of ``model``; None where the order is the same."""
    own, wanted = model.class_names, largest.class_names
    with torch.no_grad():
        counts = [one.module(torch.zeros(1, *one.input_shape)).shape[-1] for one in (model, largest)]
    if counts[0] != counts[1]:
        raise UsageError(f"{model.name} has {counts[0]} classes, {largest.name} has {counts[1]}")
    if own is None or wanted is None or own == wanted:
        return None
    missing = sorted(set(wanted) - set(own))
    if missing:
        raise UsageError(
            f"{model.name} has no class {missing[0]!r}, which {largest.name} has",
            hint="the members of a family know the same classes, under the same names",
        )
    places = {name: place for place, name in enumerate(own)}
    return torch.tensor([places[name] for name in wanted])


def _refuse_twins(models: Sequence[LoadedModel]) -> None:
    seen: dict[str, str] = {}
    for model in models:
        digest = tensors_digest(model.module.state_dict())
        if digest in seen:
            raise UsageError(f"{model.name} has the same weights as {seen[digest]}: one network is one member")
        seen[digest] = model.name


def _names(found: Sequence[str]) -> list[str]:
    """Names that differ, fit for block ids: letters, digits, ``_`` and ``-``."""
    names: list[str] = []
    for name in found:
        plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name).strip("-")[:40]
        plain = plain or "member"
        number, unique = 2, plain
        while unique in names:
            number, unique = number + 1, f"{plain}-{number}"
        names.append(unique)
    return names


def _digest(weights: Path | None) -> str | None:
    return None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()

"""A model's classes, from timm or a file, and doubts about labels and preprocessing: a pretrained model that does no
better than chance on its own task.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import DataError
from device_sdk.extras import require
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.pixels import NAMED, Numbers

JUDGED = 128  # images
_LEAST = 16  # images below which nothing is said
_PER_CLASS = 4  # images per class from which an order of classes can be told
_CLEARLY = 0.6  # accuracy of another explanation
_COLLAPSED = 0.9  # share of one class among the answers
_BATCH = 16
_LISTED = 3  # classes in a message
_CAUSES = "labels in another order than the outputs, wrong preprocessing, or missing weights"
IMAGENET = "imagenet-1k"


def label_doubts(model: LoadedModel, images: Tensor, labels: Tensor, *, weights_given: bool) -> tuple[str, ...]:
    """One sentence that says what is most likely wrong, if the model contradicts the labels; else nothing.

    Tried on the same images: the model's classes in another order, and the usual kinds of preprocessing.

    Args:
        images: prepared [count, channels, height, width]; ``labels``: positions of classes [count].
        weights_given: a weights file was loaded.
    """
    if len(images) < _LEAST:
        return ()
    answers = _answers(model, images)
    if answers.dim() != 2 or int(labels.max()) >= answers.shape[1]:
        return ()  # said elsewhere
    chosen = answers.argmax(1)
    right, chance = float((chosen == labels).float().mean()), 1 / answers.shape[1]
    order = _other_order(chosen, labels, right)
    if order is None and right > chance + 2 * math.sqrt(chance * (1 - chance) / len(labels)):
        return ()
    seen = f"the full model is right on {round(right * len(labels))} of {len(labels)} validation samples"
    seen += f" ({right:.1%}; chance is {chance:.1%})"
    if order is not None:
        names = model.class_names or tuple(map(str, range(answers.shape[1])))
        pairs = "; ".join(
            f"samples of {names[label]} are answered {names[answer]}" for label, answer in order[:_LISTED]
        )
        return (f"{seen}: its classes are most likely in another order ({pairs}); --classes FILE lists them in it",)
    better = _other_pixels(model, images, labels, right) if isinstance(model.preprocessing, Preprocessing) else None
    if better is not None:
        return (f"{seen}: its preprocessing is most likely wrong; {better}",)
    (commonest, count), *_ = Counter(chosen.tolist()).most_common(1)
    alike = (
        f", and it answers class {commonest} to {count / len(labels):.0%}" if count > _COLLAPSED * len(labels) else ""
    )
    causes = _CAUSES if weights_given else f"{_CAUSES} (no --weights were given)"
    return (f"{seen}{alike}: most likely {causes}",)


def _answers(model: LoadedModel, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.module(part) for part in images.split(_BATCH)])


def _other_order(chosen: Tensor, labels: Tensor, right: float) -> list[tuple[int, int]] | None:
    """The classes that are answered as another, if such an order of classes explains the answers far better."""
    pairs = Counter(zip(labels.tolist(), chosen.tolist(), strict=True))
    present = sorted(set(labels.tolist()))
    if len(labels) < _PER_CLASS * len(present):
        return None
    commonest = {label: max(set(chosen.tolist()), key=lambda answer: pairs[label, answer]) for label in present}
    if len(set(commonest.values())) < len(present):
        return None
    explained = sum(pairs[label, answer] for label, answer in commonest.items()) / len(labels)
    moved = [(label, answer) for label, answer in commonest.items() if label != answer]
    return moved if moved and explained >= _CLEARLY and explained >= right + 0.2 else None


def _other_pixels(model: LoadedModel, images: Tensor, labels: Tensor, right: float) -> str | None:
    """The preprocessing, of the usual ones, with which the model is far better; None without one."""
    found = [
        (float((_answers(model, other).argmax(1) == labels).float().mean()), name)
        for name, other in _prepared_otherwise(model, images)
    ]
    best, name = max(found, default=(0.0, ""))
    return f"{name} it is right on {best:.1%}" if best >= max(_CLEARLY, 2 * right) else None


def _prepared_otherwise(model: LoadedModel, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    own = model.preprocessing
    assert isinstance(own, Preprocessing)  # of images
    unit = (images * _column(own.std) + _column(own.mean)) / (255 * own.scale)  # pixels 0 to 1
    for name, (mean, std) in NAMED.items():
        if len(mean) in (1, own.channels):
            yield f"with --preprocessing {name}", (unit - _column(mean)) / _column(std)
    yield "with pixels 0 to 255", 255 * unit
    if own.channels == 3:
        swapped = 255 * own.scale * unit.flip(1)
        yield "with channels in the order blue, green, red", (swapped - _column(own.mean)) / _column(own.std)


def _column(values: Numbers) -> Tensor:
    return torch.tensor(values).view(1, -1, 1, 1)


@dataclass(frozen=True)
class ClassList:
    """The classes of a model in the order of its outputs; ``ids``: additional names of each."""

    names: tuple[str, ...]
    ids: tuple[tuple[str, ...], ...]

    def for_model(self, outputs: int, own_names: Sequence[str] | None, *, reference: str) -> ClassList:
        """This list for a model with so many outputs. The model's own names override ``imagenet-1k``; a file
        replaces them.

        Raises:
            DataError: the list has another number of classes.
        """
        if len(self.names) != outputs:
            raise DataError(
                f"--classes {reference} lists {len(self.names)} classes, the model has {outputs} outputs",
                hint="one class for each output, in their order",
            )
        if own_names is None or reference != IMAGENET:
            return self
        ids = tuple(_distinct((*ids, name)) for name, ids in zip(self.names, self.ids, strict=True))
        return ClassList(tuple(own_names), ids)


def load_classes(reference: str) -> ClassList:
    """``imagenet-1k``, or a file with one class per line, optionally with additional names after tabs.

    Raises:
        MissingExtraError: ``imagenet-1k`` without timm, which has the list.
        DataError: the file is missing, not text, or empty, has duplicate or empty names; names the line.
    """
    return _imagenet() if reference == IMAGENET else _from_file(Path(reference))


def _imagenet() -> ClassList:
    """WordNet ids and names. A class's name is its first one, made unique with the id if several classes share it."""
    info = require("timm.data", extra="vision").ImageNetInfo()
    described = [str(info.index_to_description(position)) for position in range(info.num_classes())]
    wordnet_ids = [str(info.index_to_label_name(position)) for position in range(info.num_classes())]
    first = [description.split(", ")[0] for description in described]
    shared = {name for name, count in Counter(first).items() if count > 1}
    names = [f"{name} ({id_})" if name in shared else name for name, id_ in zip(first, wordnet_ids, strict=True)]
    ids = [
        _distinct((id_, *description.split(", "), description))
        for id_, description in zip(wordnet_ids, described, strict=True)
    ]
    return ClassList(tuple(names), tuple(ids))


def _from_file(path: Path) -> ClassList:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(
            f"the classes cannot be read from {path}: {reason}",
            hint=f"--classes takes {IMAGENET} or a text file with one class per line",
        ) from error
    while lines and not lines[-1].strip():
        lines.pop()
    fields = [[field.strip() for field in line.split("\t")] for line in lines]
    seen: dict[str, int] = {}
    for number, (name, *_) in enumerate(fields, start=1):
        if not name:
            raise DataError(f"{path}: line {number} names no class", hint="one class per line, none left out")
        if seen.setdefault(name, number) != number:
            raise DataError(f"{path}: {name} is in line {seen[name]} and in line {number}")
    if len(fields) < 2:
        raise DataError(f"{path} lists {len(fields)} classes", hint="a classifier has two or more")
    ids = tuple(_distinct(tuple(filter(None, further))) for _, *further in fields)
    return ClassList(tuple(name for name, *_ in fields), ids if any(ids) else ())


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

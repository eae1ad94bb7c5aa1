"""Doubts about labels and preprocessing: a pretrained model that does no better than chance on its own task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from packager.inputs.model_loader import LoadedModel
from packager.inputs.pixels import NAMED, Numbers

JUDGED = 128  # images
_LEAST = 16  # images below which nothing is said
_PER_CLASS = 4  # images per class from which an order of classes can be told
_CLEARLY = 0.6  # accuracy of another explanation
_COLLAPSED = 0.9  # share of one class among the answers
_BATCH = 16
_LISTED = 3  # classes in a message
_CAUSES = "labels in another order than the outputs, wrong preprocessing, or missing weights"


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
    seen = f"the full model is right on {round(right * len(labels))} of {len(labels)} validation images"
    seen += f" ({right:.1%}; chance is {chance:.1%})"
    if order is not None:
        names = model.class_names or tuple(map(str, range(answers.shape[1])))
        pairs = "; ".join(f"images of {names[label]} are answered {names[answer]}" for label, answer in order[:_LISTED])
        return (f"{seen}: its classes are most likely in another order ({pairs}); --classes FILE lists them in it",)
    better = _other_pixels(model, images, labels, right)
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

"""Smaller input sizes at which the original blocks run unchanged: cheaper paths of the same blocks, no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from device_sdk.supernet.blocks import CutPoint, Golden, InputSize, free_axes
from device_sdk.supernet.plan import size_text
from packager.supernet.expansion import Expansion
from packager.tracing.traced_model import tensors_of

_STEP = 16  # pixels
_LEAST_SIDE = 96
_LEAST_RATIO = 0.5  # of the model's own side
_MOST_SIZES = 7
_LARGEST_ERROR = 0.75  # of the answers against those at the model's own size
_BATCH = 8

Size = tuple[int, int]


@dataclass(frozen=True)
class UsableSize:
    """An input size at which the original path runs; ``shapes`` and ``error`` as in ``InputSize``."""

    size: Size
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    error: float

    def described(self, golden: Golden) -> InputSize:
        """The size as stored in the manifest; ``golden``: of the original path at this size."""
        return InputSize(self.size, self.shapes, golden, self.error)

    def cut_points(self, own: Sequence[CutPoint]) -> tuple[CutPoint, ...]:
        """The cut points ``own`` with the shapes at this size."""
        described = self.described(Golden((), 0.0))
        return tuple(cut.resized(shapes) for cut, shapes in zip(own, described.shapes, strict=True))


def free_axes_at(own: Sequence[CutPoint], sizes: Sequence[UsableSize]) -> dict[str, frozenset[int]]:
    """By tensor of the cut points ``own``, the axes whose extents differ between the input sizes."""
    return free_axes(own, [size.described(Golden((), 0.0)) for size in sizes])


def candidate_sizes(own: Size) -> list[Size]:
    """Candidate input sizes: multiples of 16 pixels from half of the model's own side, the largest first.

    Multiples of 32, 48, … pixels if there would be more than seven. The aspect ratio is kept, to the nearest multiple.
    Empty for inputs below 96 pixels.
    """
    longer, step = max(own), _STEP
    while longer * (1 - _LEAST_RATIO) // step > _MOST_SIZES:
        step += _STEP
    sides = [side for side in range(longer - longer % step, _LEAST_SIDE - 1, -step) if side < longer]
    sizes = [tuple(step * max(1, round(side * extent / longer / step)) for extent in own) for side in sides]
    kept = [size for size, side in zip(sizes, sides, strict=True) if side >= _LEAST_RATIO * longer]
    return [(height, width) for height, width in kept if min(height, width) >= _LEAST_SIDE]


def usable_sizes(
    expansion: Expansion, samples: torch.Tensor, sizes: Sequence[Size], *, judged: bool = True, listed: bool = False
) -> tuple[tuple[UsableSize, ...], tuple[str, ...]]:
    """The ``sizes`` at which the original path runs with a small enough error, and notes on the others.

    Sizes with a larger error than a smaller size are left out as well.

    Args:
        samples: real images, prepared [count, channels, height, width].
        judged: False for samples of noise, whose errors say nothing and are not compared.
        listed: the sizes are a user's choice, so that none is left out for its error.
    """
    found: list[UsableSize] = []
    notes: list[str] = []
    expected = _answers(expansion, samples)
    for size in sorted(sizes):
        try:
            shapes = _shapes(expansion, resized(samples[:1], size))
            answers = _answers(expansion, samples, size)
        except Exception as error:  # operators raise many kinds on sizes that do not fit
            notes.append(f"no input of {size_text(size)}: {_first_line(error)}")
            continue
        if answers.shape != expected.shape:
            notes.append(f"no input of {size_text(size)}: the model answers {list(answers.shape[1:])} there")
            continue
        if not judged:
            found.append(UsableSize(size, shapes, 0.0))
            continue
        error_ = float((answers.softmax(1) - expected.softmax(1)).abs().sum(1).mean() / 2)
        if not (listed or error_ <= _LARGEST_ERROR):
            notes.append(
                f"no input of {size_text(size)}: the answers differ from those at the model's own size by an error"
                f" of {error_:.2f}, above {_LARGEST_ERROR:g}"
            )
            continue
        if not listed:
            found = [larger for larger in found if larger.error > error_]  # larger sizes must have smaller errors
        found.append(UsableSize(size, shapes, round(error_, 5)))
    return tuple(reversed(found)), tuple(notes)


def _answers(expansion: Expansion, samples: torch.Tensor, size: Size | None = None) -> torch.Tensor:
    """Answers of the original path to ``samples`` [count, *input], resized to ``size`` if given."""
    with torch.no_grad():
        batches = (resized(part, size) for part in samples.split(_BATCH))
        return torch.cat([expansion.traced.answer(batch) for batch in batches]).flatten(1).double()


def _shapes(expansion: Expansion, sample: torch.Tensor) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The shapes of the tensors at all cut points, without the batch axis."""
    with torch.no_grad():
        features = expansion.traced.features(sample)
    return tuple(tuple(tuple(tensor.shape[1:]) for tensor in tensors_of([feature])) for feature in features)


def resized(images: torch.Tensor, size: Size | None) -> torch.Tensor:
    """Prepared ``images`` [count, channels, height, width] at another size; as they are for None."""
    if size is None or tuple(images.shape[2:]) == size:
        return images
    return functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]

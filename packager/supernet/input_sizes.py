"""Smaller input sizes at which the original blocks run unchanged: cheaper paths of the same blocks, no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from device_sdk.data.inputs import resize_prepared
from device_sdk.errors import UsageError
from device_sdk.supernet.blocks import CutPoint, Golden, InputSize, free_axes
from device_sdk.supernet.plan import size_text
from packager.supernet.expansion import Expansion
from packager.tasks import LearningTask
from packager.tracing.traced_model import tensors_of

_STEP = 16  # pixels
_LEAST_SIDE = 96
_LEAST_RATIO = 0.5  # of the model's own side
_MOST_SIZES = 7
_LARGEST_ERROR = 0.75  # of the answers against those at the model's own size
_BATCH = 8
_LENGTH_STEP, _LEAST_LENGTH = 8, 16  # of tokens
_LENGTH_SHARES = (0.75, 0.5, 0.375, 0.25, 0.125)  # of the model's own

Size = tuple[int, ...]  # height and width, or a length


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
    Empty for inputs below 96 pixels. A length, of tokens, has candidates down to an eighth, multiples of 8 from 16 on.
    """
    if len(own) == 1:
        return _candidate_lengths(own[0])
    longer, step = max(own), _STEP
    while longer * (1 - _LEAST_RATIO) // step > _MOST_SIZES:
        step += _STEP
    sides = [side for side in range(longer - longer % step, _LEAST_SIDE - 1, -step) if side < longer]
    sizes = [tuple(step * max(1, round(side * extent / longer / step)) for extent in own) for side in sides]
    kept = [size for size, side in zip(sizes, sides, strict=True) if side >= _LEAST_RATIO * longer]
    return [(height, width) for height, width in kept if min(height, width) >= _LEAST_SIDE]


def require_sizes_of(wanted: Sequence[Size] | Literal["auto"], shape: Sequence[int]) -> None:
    """Refuse sizes that are no sizes of an input [channels, *size] of this shape (UsageError)."""
    wrong = [size for size in wanted if len(size) != len(shape) - 1] if wanted != "auto" else []
    if wrong:
        needed = "height and width" if len(shape) > 2 else "one length"
        raise UsageError(f"the input size {size_text(wrong[0])} is not {needed}, as the model's inputs have")


def _candidate_lengths(own: int) -> list[Size]:
    lengths = {round(own * share / _LENGTH_STEP) * _LENGTH_STEP for share in _LENGTH_SHARES}
    return [(length,) for length in sorted(lengths, reverse=True) if _LEAST_LENGTH <= length < own]


def usable_sizes(
    expansion: Expansion,
    samples: torch.Tensor,
    sizes: Sequence[Size],
    *,
    task: LearningTask,
    judged: bool = True,
    listed: bool = False,
) -> tuple[tuple[UsableSize, ...], tuple[str, ...]]:
    """The ``sizes`` at which the original path runs with a small enough error, and notes on the others.

    Sizes with a larger error than a smaller size are left out as well.

    Args:
        samples: real samples, prepared [count, *input].
        task: measures the errors; those that are maps or of tokens have another extent at other sizes.
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
        if not _alike(answers, expected):
            notes.append(f"no input of {size_text(size)}: the model answers {list(answers.shape[1:])} there")
            continue
        if not judged:
            found.append(UsableSize(size, shapes, 0.0))
            continue
        error_ = round(float(task.distance(answers, expected).mean()), 5)
        if not (listed or error_ <= _LARGEST_ERROR):
            notes.append(
                f"no input of {size_text(size)}: the answers differ from those at the model's own size by an error"
                f" of {error_:.2f}, above {_LARGEST_ERROR:g}"
            )
            continue
        if not listed:
            found = [
                smaller for smaller in found if smaller.error >= error_
            ]  # larger sizes must not have larger errors
        found.append(UsableSize(size, shapes, error_))
    return tuple(reversed(found)), tuple(notes)


def _answers(expansion: Expansion, samples: torch.Tensor, size: Size | None = None) -> torch.Tensor:
    """Answers of the original path to ``samples`` [count, *input], resized to ``size`` if given."""
    with torch.no_grad():
        batches = (resized(part, size) for part in samples.split(_BATCH))
        return torch.cat([expansion.traced.answer(batch) for batch in batches]).double()


def _alike(answers: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if both have the same channels: maps may have another resolution, texts another number of tokens."""
    return (
        answers.dim() == expected.dim()
        and answers.shape[1] == expected.shape[1]
        and (answers.dim() > 2 or answers.shape == expected.shape)
    )


def _shapes(expansion: Expansion, sample: torch.Tensor) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The shapes of the tensors at all cut points, without the batch axis; those of taps as in ``cut_points``."""
    taps = expansion.traced.taps
    with torch.no_grad():
        *inner, last = expansion.traced.features(sample)
    live = [[feature, *(inner[tap] for tap in taps if tap < index)] for index, feature in enumerate(inner)]
    return tuple(tuple(tuple(tensor.shape[1:]) for tensor in tensors_of(some)) for some in (*live, [last]))


def resized(images: torch.Tensor, size: Size | None) -> torch.Tensor:
    """Prepared ``images`` [count, channels, height, width] at another size; as they are for None.

    Tokens and other series as in ``resize_prepared``.
    """
    if size is None or tuple(images.shape[2:]) == size:
        return images
    if len(size) == 1:
        return torch.from_numpy(resize_prepared(images.numpy(), size))
    return functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]

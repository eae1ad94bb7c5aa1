"""Samples as a search takes them: prepared when they are needed, at any input size, and views of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.data.preprocessing import Preprocessing, as_pixels, fit_image, prepare, resize_planes

_MOVED = 3 / 32  # of the shorter side
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
VIEWS = 2 * len(_MOVES)


def views(inputs: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.float32]]:
    """Each view of all prepared samples [count, channels, height, width]; the first one is the samples themselves.

    Samples other than images have no further views.
    """
    if inputs.ndim != 4:
        yield inputs
        return
    height, width = inputs.shape[2:]
    by = max(1, round(_MOVED * min(height, width)))
    for mirrored in (False, True):
        own = inputs[..., ::-1] if mirrored else inputs
        padded = np.pad(own, ((0, 0), (0, 0), (by, by), (by, by)), mode="reflect")
        for down, right in _MOVES:
            top, left = by * (1 + down), by * (1 + right)
            yield np.ascontiguousarray(padded[..., top : top + height, left : left + width])


KEPT_BYTES = 100_000_000  # of resized pixels

Floats = npt.NDArray[np.float32]
Shape = tuple[int, int, int]  # channels, height, width


class Inputs(Protocol):
    """Samples that can be prepared at several input sizes."""

    def __len__(self) -> int: ...

    def take(self, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()) -> npt.NDArray[Any]:
        """The samples at ``positions`` as [count, *input], at an input size (empty: the model's own)."""

    def subset(self, positions: npt.NDArray[np.int64]) -> Inputs:
        """Only the samples at ``positions``, in that order."""


class PreparedInputs:
    """Samples that are prepared tensors, [count, *input] at the model's own size; at others see ``resize_prepared``."""

    def __init__(self, tensors: npt.NDArray[np.float32]) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def take(self, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()) -> Floats:
        """See the port."""
        return resize_prepared(self._tensors[positions], input_size)

    def subset(self, positions: npt.NDArray[np.int64]) -> PreparedInputs:
        """See the port."""
        return PreparedInputs(self._tensors[positions])


class RawInputs:
    """Raw images uint8 [height, width, channels], of any sizes, prepared when their batch is taken.

    ``input_shape``: [channels, height, width] at the model's own size; ``positions``: of the images that are samples,
    default all. Resized pixels are cached, up to ``KEPT_BYTES``, since a search takes every image at every input size
    repeatedly.
    """

    def __init__(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        preprocessing: Preprocessing,
        input_shape: Shape,
        *,
        positions: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._images = images
        self._positions = np.arange(len(images)) if positions is None else positions
        self._preprocessing = preprocessing
        self._shape = input_shape
        self._fitted: dict[tuple[int, tuple[int, ...]], npt.NDArray[np.uint8]] = {}
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._positions)

    def check(self, position: int) -> None:
        """Raise InputError unless this image can be prepared."""
        self._prepared(position, ())

    def take(self, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()) -> Floats:
        """See the port."""
        return np.concatenate([self._prepared(int(position), input_size) for position in positions])

    def subset(self, positions: npt.NDArray[np.int64]) -> RawInputs:
        """See the port."""
        return RawInputs(self._images, self._preprocessing, self._shape, positions=self._positions[positions])

    def _prepared(self, position: int, input_size: tuple[int, ...]) -> Floats:
        height, width = input_size or self._shape[1:]
        pixels = self._pixels(position, (height, width))
        return prepare(pixels, self._preprocessing, input_shape=self._shape, input_size=input_size)

    def _pixels(self, position: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """The image in ``size``, or unchanged if the preprocessing does not resize."""
        key = (position, size)
        if key not in self._fitted:
            pixels = as_pixels(self._images[int(self._positions[position])], channels=self._preprocessing.channels)
            fitted = fit_image(pixels, self._preprocessing, size=size) if self._preprocessing.resize else pixels
            if self._kept_bytes + fitted.nbytes > KEPT_BYTES:
                return fitted
            self._fitted[key] = fitted
            self._kept_bytes += fitted.nbytes
        return self._fitted[key]


def as_inputs(samples: Inputs | npt.NDArray[np.float32]) -> Inputs:
    """``samples`` as ``Inputs``; an array is [count, *input] at the model's own size."""
    return PreparedInputs(samples) if isinstance(samples, np.ndarray) else samples


def batches(inputs: Inputs, batch: int, input_size: tuple[int, ...] = ()) -> Iterator[Floats]:
    """All samples in order, at most ``batch`` at a time, prepared: [count, *input]."""
    for at in range(0, len(inputs), batch):
        yield inputs.take(np.arange(at, min(at + batch, len(inputs))), input_size)


def resize_prepared(tensors: npt.NDArray[Any], size: tuple[int, ...]) -> npt.NDArray[Any]:
    """Prepared tensors [count, channels, *own] at another size, [count, channels, *size].

    Images are resized, rows of tokens are cut, other series keep their middle.
    """
    if not size or tensors.shape[2:] == size:
        return tensors
    if len(size) == 2:
        return resize_planes(tensors, size)
    return cut_tokens(tensors, size[0]) if tensors.dtype.kind == "i" else middle(tensors, size[0])


def cut_tokens(tokens: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Texts [count, rows, tokens], padded at their end, as [count, rows, length].

    Row 1 is the attention mask. A text of more tokens keeps the first ones, and its last one at the end.
    """
    kept = np.ascontiguousarray(tokens[..., :length])
    counts = tokens[:, 1].sum(axis=1)  # [count]
    for text in np.flatnonzero(counts > length):
        kept[text, :, -1] = tokens[text, :, counts[text] - 1]
    return kept


def middle(series: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The middle ``length`` values of series [count, channels, values]; shorter ones are centred between zeros."""
    have = series.shape[2]
    if have >= length:
        first = (have - length) // 2
        return np.ascontiguousarray(series[..., first : first + length])
    before = (length - have) // 2
    return np.pad(series, ((0, 0), (0, 0), (before, length - have - before)))

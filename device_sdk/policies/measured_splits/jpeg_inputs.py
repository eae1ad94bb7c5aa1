"""Private images as a server gets them in JPEGs: their size, what coding takes, and the pixels that are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean, median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.data.jpeg import QUALITY, decode_jpeg, encode_jpeg
from device_sdk.data.preprocessing import Preprocessing, fit_image, prepare
from device_sdk.policies.splitting.handling import JpegCoding
from device_sdk.runtimes.port import Array

_SIZED = 32  # images, about, that are coded to know their mean size and their times

Pixels = npt.NDArray[np.uint8]
Made = TypeVar("Made")


class JpegInputs:
    """``images``, uint8 [height, width, channels] each, as ``NAME:jpeg`` at a server takes them.

    ``input_shape``: [channels, height, width] of the model's own input, to which the device fits an image first.
    """

    def __init__(
        self,
        images: Sequence[Pixels],
        preprocessing: Preprocessing,
        *,
        input_shape: tuple[int, int, int],
        quality: int = QUALITY,
    ) -> None:
        self._images, self._preprocessing = images, preprocessing
        self._shape, self._quality = input_shape, quality

    def coding(self) -> JpegCoding:
        """Mean size and median times of some of the images; the server is taken to decode as fast as this device."""
        images = self._images[:: max(1, len(self._images) // _SIZED)]
        encoded, encoding_ms = zip(*(_timed(partial(self._encoded, image)) for image in images), strict=True)
        decoding_ms = [_timed(partial(self._decoded, data))[1] for data in encoded]
        return JpegCoding(round(mean(map(len, encoded))), median(encoding_ms), median(decoding_ms))

    def received(self, batch: int) -> Iterator[Array]:
        """The images as the server's model gets them, in batches [batch, *input]."""
        for at in range(0, len(self._images), batch):
            yield np.concatenate([self._decoded(self._encoded(image)) for image in self._images[at : at + batch]])

    def _encoded(self, image: Pixels) -> bytes:
        fitted = fit_image(image, self._preprocessing, size=self._shape[1:])
        return encode_jpeg(fitted, quality=self._quality)

    def _decoded(self, data: bytes) -> Array:
        pixels = decode_jpeg(data, channels=self._preprocessing.channels)
        return prepare(pixels, self._preprocessing, input_shape=self._shape)


def _timed(make: Callable[[], Made]) -> tuple[Made, float]:
    started = time.perf_counter()
    made = make()
    return made, (time.perf_counter() - started) * 1e3

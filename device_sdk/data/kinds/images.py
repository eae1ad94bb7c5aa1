"""Images as a kind of samples: resized, scaled and normalised by ``preprocessing.prepare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import RawInputs
from device_sdk.data.kinds.port import Array, ReadBlob
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import InputError


class RawImages(Sequence[npt.NDArray[np.uint8]]):
    """Raw images as arrays [height, width, channels], each converted when it is taken."""

    def __init__(self, images: Sequence[Any]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, at: int) -> npt.NDArray[np.uint8]: ...

    @overload
    def __getitem__(self, at: slice) -> RawImages: ...

    def __getitem__(self, at: int | slice) -> npt.NDArray[np.uint8] | RawImages:
        if isinstance(at, slice):
            return RawImages(self._images[at])
        array = np.asarray(self._images[at], dtype=np.uint8)
        return array if array.ndim == 3 else array[..., np.newaxis]


class ImagePreparer:
    """Images for a model that takes ``shape`` [channels, height, width]; see the port.

    Raw images are [h, w], [h, w, channels], [batch, h, w, channels], a Pillow image, or a list of any of these sizes.
    """

    names = "images"

    def __init__(self, preprocessing: Preprocessing, shape: tuple[int, ...], read_blob: ReadBlob) -> None:
        self._preprocessing, self._shape = preprocessing, shape

    def is_prepared(self, samples: object) -> bool:
        """See the port: raw images are uint8."""
        return isinstance(samples, np.ndarray) and samples.dtype != np.uint8

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """See the port: float32 [n, channels, height, width]."""
        return prepare(samples, self._preprocessing, input_shape=self._image_shape(), input_size=input_size)

    def listed(self, samples: Any) -> RawImages:
        """A batch of raw images, or a sequence of images of any sizes, as arrays [height, width, channels]."""
        return RawImages(self._images(samples))

    def inputs(self, samples: Any) -> RawInputs:
        """See the port."""
        inputs = RawInputs(self._images(samples), self._preprocessing, self._image_shape())
        for position in range(len(inputs)):
            inputs.check(position)
        return inputs

    def notes(self, samples: Any) -> tuple[str, ...]:
        """Nothing is lost that the preprocessing does not say."""
        return ()

    def _images(self, samples: Any) -> Sequence[Any]:
        """``samples``, where a single image, which has fewer dimensions than a batch, counts as a batch of one."""
        if not isinstance(samples, np.ndarray) or samples.ndim == 4:
            return cast(Sequence[Any], samples)
        grey = samples.ndim == 3 and self._preprocessing.channels == 1
        return cast(Sequence[Any], samples[..., np.newaxis]) if grey else [samples]

    def _image_shape(self) -> tuple[int, int, int]:
        if len(self._shape) != 3:
            listed = ", ".join(map(str, self._shape))
            raise InputError(f"the model takes tensors [batch, {listed}], not images", hint="use model.infer")
        return self._shape[0], self._shape[1], self._shape[2]

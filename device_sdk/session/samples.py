"""Checks of samples and labels against the model's input and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import Manifest
from device_sdk.data.inputs import Inputs, RawInputs, resize_prepared
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import InputError, UsageError
from device_sdk.runtimes.port import Array

if TYPE_CHECKING:
    from PIL import Image


Samples = npt.NDArray[np.uint8] | Sequence["npt.NDArray[np.uint8] | Image.Image"]
"""Raw images: uint8 [count, height, width, channels], or a list of arrays or Pillow images of any sizes."""

Labels = npt.NDArray[Any] | Sequence[int]
"""Class indices [count]; for a split of other tasks what their score takes."""


class Pixels(Sequence[npt.NDArray[np.uint8]]):
    """Raw images as arrays [height, width, channels], each converted when it is taken."""

    def __init__(self, images: Sequence[Any]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, at: int) -> npt.NDArray[np.uint8]: ...

    @overload
    def __getitem__(self, at: slice) -> Pixels: ...

    def __getitem__(self, at: int | slice) -> npt.NDArray[np.uint8] | Pixels:
        if isinstance(at, slice):
            return Pixels(self._images[at])
        array = np.asarray(self._images[at], dtype=np.uint8)
        return array if array.ndim == 3 else array[..., np.newaxis]


class SampleChecker:
    """Turns raw images into what the model of ``manifest`` takes, and refuses everything else (InputError)."""

    def __init__(self, manifest: Manifest) -> None:
        self._preprocessing = manifest.preprocessing
        self._input = manifest.cut_points[0].tensors[0]
        self._classes = len(manifest.task.class_names)
        self._kind = manifest.task.kind

    def prepare(
        self, images: npt.NDArray[np.uint8] | Image.Image, input_size: tuple[int, ...] = ()
    ) -> npt.NDArray[np.float32]:
        """Raw images [h, w], [h, w, channels] or [batch, h, w, channels] as [batch, *input] float32.

        ``input_size``: height and width of the plan's input; empty for the model's own.
        """
        channels, *own = self._image_shape()
        height, width = input_size or own
        return prepare(images, self._preprocessing, input_shape=(channels, height, width))

    def either(self, images: Array | Image.Image, input_size: tuple[int, ...] = ()) -> Array:
        """A prepared tensor as ``tensor`` takes it, or raw images as ``prepare`` does."""
        if isinstance(images, np.ndarray) and images.dtype != np.uint8:
            return self.tensor(images, input_size)
        return self.prepare(images, input_size)

    def some(
        self, images: Array | Image.Image, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()
    ) -> Array:
        """As ``either``, of the samples at ``positions`` alone: [count, *input].

        Prepared tensors were taken before: they may have the size of another plan, and are resized.
        """
        if isinstance(images, np.ndarray) and images.dtype != np.uint8:
            batch = images if images.ndim > len(self._input.shape) else images[np.newaxis]
            return resize_prepared(batch[positions], input_size or self._input.shape[1:])
        if isinstance(images, np.ndarray) and images.ndim == 4:
            return self.prepare(images[positions], input_size)
        return self.prepare(images, input_size)[positions]

    def pixels(self, samples: Any) -> Pixels:
        """A batch of raw images, or a sequence of images of any sizes, as arrays [height, width, channels]."""
        return Pixels(self._images(samples))

    def inputs(self, samples: Any) -> Inputs:
        """The same samples, prepared when they are needed, at any input size."""
        if not len(samples):
            raise InputError("there are no samples")
        inputs = RawInputs(self._images(samples), self._preprocessing, self._image_shape())
        for position in range(len(inputs)):
            inputs.check(position)
        return inputs

    def _images(self, samples: Any) -> Sequence[Any]:
        """``samples``, where a single image, which has fewer dimensions than a batch, counts as a batch of one."""
        if not isinstance(samples, np.ndarray) or samples.ndim == 4:
            return cast(Sequence[Any], samples)
        grey = samples.ndim == 3 and self._preprocessing.channels == 1
        return cast(Sequence[Any], samples[..., np.newaxis]) if grey else [samples]

    def _image_shape(self) -> tuple[int, int, int]:
        shape = self._input.shape
        if len(shape) != 3:
            raise InputError(f"the model takes tensors [batch, {_joined(shape)}], not images", hint="use model.infer")
        return shape[0], shape[1], shape[2]

    def require_classifier(self) -> None:
        """Private samples can only be judged where there is one class for each (UsageError)."""
        if self._kind != "classification":
            raise UsageError(
                f"only classifiers adapt to private data so far; this model is for {self._kind}",
                hint="choose a subnet with model.use(Plan(subnet)), by model.profile() and data of your own",
            )

    def labels(self, labels: Any) -> npt.NDArray[np.int64]:
        """Class indices as int64 [count]."""
        array = np.asarray(labels)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"labels must be class indices [count], got {array.dtype} {array.shape}")
        if len(array) and not (array.min() >= 0 and array.max() < self._classes):
            raise InputError(f"labels must lie between 0 and {self._classes - 1}")
        return array.astype(np.int64)

    def tensor(self, tensor: Any, input_size: tuple[int, ...] = ()) -> Array:
        """A prepared tensor [batch, *input], or one sample [*input] as a batch of one.

        At the model's own size, or at that of the plan, ``input_size``; the former is resized where the plan's differs.
        """
        spec = self._input
        if input_size and isinstance(tensor, np.ndarray) and tensor.shape[-2:] == input_size:
            spec = msgspec.structs.replace(spec, shape=(spec.shape[0], *input_size))
        if not isinstance(tensor, np.ndarray):
            raise InputError(f"expected a numpy array, got {type(tensor).__name__}")
        if tensor.shape == spec.shape:
            tensor = tensor[np.newaxis]
        if tensor.shape[1:] != spec.shape or len(tensor) == 0:
            raise InputError(f"expected a tensor of shape [batch, {_joined(spec.shape)}], got {list(tensor.shape)}")
        if tensor.dtype != spec.dtype:
            raise InputError(f"expected {spec.dtype}, got {tensor.dtype}", hint="raw images go to model(x)")
        return resize_prepared(tensor, input_size)


def _joined(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))

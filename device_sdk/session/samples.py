"""Checks of samples and labels against the model's input and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, Union

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import Manifest
from device_sdk.data.inputs import Inputs, resize_prepared
from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.images import ImagePreparer
from device_sdk.data.kinds.port import ReadBlob
from device_sdk.data.kinds.texts import TextPreparer
from device_sdk.errors import BlobError, InputError, UsageError
from device_sdk.runtimes.port import Array

if TYPE_CHECKING:
    from PIL import Image


Samples = npt.NDArray[Any] | Sequence["npt.NDArray[Any] | Image.Image | str"]
"""Raw images: uint8 [count, height, width, channels], or a list of arrays or Pillow images of any sizes. Texts: a list.
Sounds: a list of arrays [samples]. Prepared values: an array [count, *input]."""

Raw = Union[Array, "Image.Image", str, Sequence[str], Sequence[Array]]
"""One sample or several of the model's kind; see ``AdaptiveModel.__call__``."""

Labels = npt.NDArray[Any] | Sequence[int]
"""Class indices [count]; for a split of other tasks what their score takes."""


def no_blob(name: str) -> bytes:
    """Blobs of a manifest without its bundle (BlobError)."""
    raise BlobError(f"blob {name[:12]}… is not here: the manifest was read without its bundle")


class SampleChecker:
    """Turns raw samples into what the model of ``manifest`` takes, and refuses everything else (InputError).

    ``read_blob``: the bundle's, for preparing that needs some.
    """

    def __init__(self, manifest: Manifest, read_blob: ReadBlob = no_blob) -> None:
        self._input = manifest.cut_points[0].tensors[0]
        self._kind = manifest.task.kind
        self._preparer = preparer_of(manifest.preprocessing, self._input.shape, read_blob)

    def is_prepared(self, samples: Any) -> bool:
        """True for tensors as ``tensor`` takes them, False for raw samples."""
        return self._preparer.is_prepared(samples)

    def is_tensor(self, samples: Any) -> TypeGuard[Array]:
        """True for prepared tensors of the type that the model takes."""
        return self._preparer.is_prepared(samples) and samples.dtype == self._input.dtype

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """Raw samples, one or a batch, as [batch, *input]; ``input_size``: of the plan, empty for the model's own."""
        return self._preparer.prepare(samples, input_size)

    def either(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """A prepared tensor as ``tensor`` takes it, or raw samples as ``prepare`` does."""
        return self.tensor(samples, input_size) if self.is_prepared(samples) else self.prepare(samples, input_size)

    def some(self, samples: Any, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()) -> Array:
        """As ``either``, of the samples at ``positions`` alone: [count, *input].

        Prepared tensors were taken before: they may have the size of another plan, and are resized.
        """
        if self.is_prepared(samples):
            batch = samples if samples.ndim > len(self._input.shape) else samples[np.newaxis]
            return resize_prepared(batch[positions], input_size or self._input.shape[1:])
        if isinstance(samples, np.ndarray) and samples.ndim == 4:
            return self.prepare(samples[positions], input_size)
        return self.prepare(samples, input_size)[positions]

    def pixels(self, samples: Any) -> Sequence[npt.NDArray[np.uint8]] | None:
        """Raw images, one array [height, width, channels] each; None for samples of other kinds."""
        return self._preparer.listed(samples) if isinstance(self._preparer, ImagePreparer) else None

    def raw(self, samples: Any) -> Sequence[npt.NDArray[np.uint8]] | Sequence[str] | None:
        """The samples as they can travel before they are prepared: images or texts; None for prepared and others."""
        if self.is_prepared(samples) or not isinstance(self._preparer, ImagePreparer | TextPreparer):
            return None
        return self._preparer.listed(samples)

    def inputs(self, samples: Any) -> Inputs:
        """The same samples, prepared when they are needed, at any input size."""
        if not len(samples):
            raise InputError("there are no samples")
        return self._preparer.inputs(samples)

    def notes(self, samples: Any) -> tuple[str, ...]:
        """A sentence on each kind of loss in preparing these samples."""
        return self._preparer.notes(samples)

    def require_classifier(self) -> None:
        """Private samples can only be judged where there is one class for each (UsageError)."""
        if self._kind != "classification":
            raise UsageError(
                f"this needs a classifier; the model is for {self._kind}",
                hint="choose a subnet with model.use(Plan(subnet)), by model.profile() and data of your own",
            )

    def tensor(self, tensor: Any, input_size: tuple[int, ...] = ()) -> Array:
        """A prepared tensor [batch, *input], or one sample [*input] as a batch of one.

        At the model's own size, or at that of the plan, ``input_size``; the former is resized where the plan's differs.
        """
        spec = self._input
        if input_size and isinstance(tensor, np.ndarray) and tensor.shape[-len(input_size) :] == input_size:
            spec = msgspec.structs.replace(spec, shape=(spec.shape[0], *input_size))
        if not isinstance(tensor, np.ndarray):
            raise InputError(f"expected a numpy array, got {type(tensor).__name__}")
        if tensor.shape == spec.shape:
            tensor = tensor[np.newaxis]
        if tensor.shape[1:] != spec.shape or len(tensor) == 0:
            raise InputError(f"expected a tensor of shape [batch, {_joined(spec.shape)}], got {list(tensor.shape)}")
        if tensor.dtype != spec.dtype:
            raise InputError(
                f"expected {spec.dtype}, got {tensor.dtype}", hint=f"raw {self._preparer.names} go to model(x)"
            )
        return resize_prepared(tensor, input_size)


def _joined(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))

"""Checks whether a server's model can replace the device's, and converts samples to its input. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from device_sdk.data import image_files
from device_sdk.data.preprocessing import AnyPreprocessing, fit_image, resize_image, unprepare
from device_sdk.errors import InputError, UsageError
from device_sdk.offload.client import ModelMetadata, TensorMetadata, sides_fit
from device_sdk.offload.open_inference import BYTES, NamedTensor
from device_sdk.runtimes.port import Array

MAX_SENT_SIDE = 1024  # pixels; limit of the size to which a server can make a device resize images
TEXT_CONTENT = "text/plain; charset=utf-8"  # media type of texts, one byte string each
_RESIZABLE = (1, 3)  # channels
_DATATYPES = {"float32": "FP32", "int64": "INT64"}

RawBatch = npt.NDArray[np.uint8] | Sequence[str]
"""Samples before they were prepared, as they can travel: pixels [n, h, w, c], or texts."""


@dataclass(frozen=True)
class Agreement:
    """A model with one input and one output, and the kind of its input."""

    sends: Literal["images", "tensors", "jpeg", "texts"]
    metadata: ModelMetadata

    @property
    def input(self) -> TensorMetadata:
        """The model's only input."""
        return self.metadata.inputs[0]


def agree(
    metadata: ModelMetadata,
    *,
    class_names: Sequence[str],
    input_shape: Sequence[int],
    output_shape: Sequence[int] = (),
    task: str = "classification",
    input_type: str = "float32",
    of_texts: bool = False,
) -> Agreement:
    """Choose the kind of input for the model of ``metadata``: images, tensors, JPEGs or texts, whichever it takes.

    ``input_shape``: of the device's prepared tensors, without the batch: [c, h, w] for images.
    ``output_shape``: the same of the output; by default one logit per class. ``task``: the device's, compared with the
    server's where it states one. ``input_type``: of the device's prepared tensors, float32 or int64. ``of_texts``: the
    device's model takes texts, so that the server's may have another tokenizer.

    Raises:
        UsageError: classes, input or output do not match; the message says which.
    """
    if len(metadata.inputs) != 1 or len(metadata.outputs) != 1:
        raise _misfit(f"it has {len(metadata.inputs)} inputs and {len(metadata.outputs)} outputs, not one and one")
    wanted, output = metadata.inputs[0], metadata.outputs[0]
    if metadata.task is not None and metadata.task != task:
        raise _misfit(f"it is for {metadata.task[:40]}, the device's model for {task}")
    expected = tuple(output_shape) or (len(class_names),)
    if metadata.class_names is not None and metadata.class_names != tuple(class_names):
        raise _misfit("its classes are not the device's")
    if output.datatype not in ("FP16", "FP32", "FP64") or not _batch_of(expected, output.shape):
        raise _misfit(f"its output is {output.datatype} {list(output.shape)}, the device's is {list(expected)}")
    if wanted.datatype == "UINT8" and len(input_shape) == 3 and _takes_images(wanted.shape, channels=input_shape[0]):
        return Agreement("images", metadata)
    if wanted.datatype == _DATATYPES.get(input_type) and _batch_of(input_shape, wanted.shape):
        return Agreement("tensors", metadata)
    if _takes(image_files.CONTENT, metadata) and len(input_shape) == 3 and input_shape[0] in _RESIZABLE:
        return Agreement("jpeg", metadata)
    if _takes(TEXT_CONTENT, metadata) and of_texts:
        return Agreement("texts", metadata)
    raise _misfit(f"its input is {wanted.datatype} {list(wanted.shape)}, the device's {list(input_shape)}")


def fill(
    agreement: Agreement,
    tensors: Array,
    raw: RawBatch | None,
    *,
    preprocessing: AnyPreprocessing,
    jpeg_quality: int = image_files.QUALITY,
) -> NamedTensor:
    """The samples as the model's input tensor; JPEGs have the height and width of ``tensors``.

    ``tensors``: prepared, float32 [n, ...], of texts int64; ``raw``: the same samples before, or None to recover pixels
    from ``tensors``.

    Raises:
        InputError: the pixels cannot be recovered or resized, or texts are to be sent and only their tokens are known.
    """
    if agreement.sends == "tensors":
        kind = np.int64 if tensors.dtype.kind == "i" else np.float32
        return NamedTensor(agreement.input.name, tensors.astype(kind, copy=False))
    if agreement.sends == "texts":
        return NamedTensor(agreement.input.name, _encoded(raw))
    pixels = raw if isinstance(raw, np.ndarray) else unprepare(tensors, preprocessing.of_images())
    if agreement.sends == "jpeg":
        size = (tensors.shape[2], tensors.shape[3])
        fitted = [fit_image(image, preprocessing.of_images(), size=size) for image in pixels]
        return NamedTensor(agreement.input.name, image_files.encode_all(fitted, quality=jpeg_quality))
    return NamedTensor(agreement.input.name, _resized(pixels, agreement.input.shape))


def _resized(pixels: npt.NDArray[np.uint8], shape: Sequence[int]) -> npt.NDArray[np.uint8]:
    if sides_fit(pixels.shape, shape):
        return pixels
    if pixels.shape[3] not in _RESIZABLE:
        raise InputError(f"the server needs images {list(shape[1:])}; these cannot be resized: {pixels.shape[1:]}")
    size = (
        shape[1] if shape[1] != -1 else pixels.shape[1],
        shape[2] if shape[2] != -1 else pixels.shape[2],
    )
    return np.stack([resize_image(image, size) for image in pixels])


def _encoded(texts: RawBatch | None) -> npt.NDArray[np.object_]:
    """Each text as UTF-8; bytes objects [n]."""
    if texts is None or isinstance(texts, np.ndarray):
        raise InputError("the server takes texts, and only their tokens are at hand", hint="call the model with texts")
    encoded = np.empty(len(texts), object)
    encoded[:] = [text.encode("utf-8", "replace") for text in texts]
    return encoded


def _takes(content: str, metadata: ModelMetadata) -> bool:
    """True if the input is a batch of byte strings of this media type, and the server takes binary tensor data."""
    [wanted] = metadata.inputs
    strings = wanted.datatype == BYTES and tuple(wanted.shape) == (-1,)
    return strings and metadata.content == content and metadata.binary


def _takes_images(shape: Sequence[int], *, channels: int) -> bool:
    """True if ``shape`` is [-1, h, w, c]: sides of at most ``MAX_SENT_SIDE`` and c of ``channels``, each or -1."""
    if len(shape) != 4 or shape[0] != -1 or shape[3] not in (-1, channels):
        return False
    return all(side == -1 or 1 <= side <= MAX_SENT_SIDE for side in shape[1:3])


def _batch_of(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return tuple(wanted[:1]) == (-1,) and sides_fit(shape, wanted[1:])


def _misfit(why: str) -> UsageError:
    return UsageError(f"the server's model does not fit: {why}", hint="name another model of the server")

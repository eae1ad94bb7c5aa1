"""Raw samples of requests, prepared as the bundle's manifest says: a class for each form in which they come."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.data import image_files
from device_sdk.data.kinds.texts import TextPreparer, TextPreprocessing
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import InputError
from device_sdk.offload.agreement import TEXT_CONTENT
from device_sdk.offload.open_inference import BYTES, InferRequest
from device_sdk.offload.remote_model import IMAGES, JPEG, TEXTS, takes_jpegs
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import TensorSpec

BATCH = -1
FLOAT_BYTES = 4  # pixels and activations of one byte become floats
_BYTES_PER_TOKEN = 128  # of an encoding, which has at most a token for each byte of a text
_KNOWN_BUNDLES = 64  # whose tokenizers are kept

_Input = tuple[str, str, tuple[int, ...]]  # name, datatype, shape


class Intake(Protocol):
    """Raw samples in one form, for the model of a bundle.

    ``input``: name, datatype and shape of the only input. ``content``: media type of its byte strings; None for others.
    """

    input: _Input
    content: str | None

    def working_bytes(self, request: InferRequest) -> int:
        """The memory that preparing takes beside the tensors of ``request`` (InputError for what cannot be sized)."""

    def prepared(self, samples: Array) -> Array:
        """Samples [rows, ...] as the model's input [rows, *input] (InputError)."""


class PixelIntake:
    """Images of one size, uint8 [rows, height, width, channels]."""

    input: _Input
    content: str | None = None

    def __init__(self, bundle: Bundle) -> None:
        channels, height, width = _input(bundle).shape
        self._shape = (channels, height, width)
        self._preprocessing = bundle.manifest.preprocessing.of_images()
        self.input = ("image", "UINT8", (BATCH, height, width, self._preprocessing.channels))

    def working_bytes(self, request: InferRequest) -> int:
        """See the port: the pixels as floats."""
        return FLOAT_BYTES * sum(tensor.data.nbytes for tensor in request.inputs)

    def prepared(self, samples: Array) -> Array:
        """See the port."""
        return prepare(samples, self._preprocessing, input_shape=self._shape)


class JpegIntake(PixelIntake):
    """Images of any sizes as JPEGs, a byte string each [rows]."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.input = ("image", BYTES, (BATCH,))
        self.content = image_files.CONTENT
        self._sample_bytes = _input(bundle).size * FLOAT_BYTES

    def working_bytes(self, request: InferRequest) -> int:
        """See the port: prepared tensors, twice while they are joined, and the largest image while it is decoded."""
        encoded = _byte_strings(request)
        pixels = max((height * width for height, width in map(image_files.jpeg_size, encoded)), default=0)
        return 2 * len(encoded) * self._sample_bytes + 2 * pixels * self._preprocessing.channels

    def prepared(self, samples: Array) -> Array:
        """See the port; one image is decoded at a time."""
        channels = self._preprocessing.channels
        decoded = (image_files.decode_jpeg(data, channels=channels) for data in samples)
        return np.concatenate([super(JpegIntake, self).prepared(image) for image in decoded])


class TextIntake:
    """Texts in UTF-8, a byte string each [rows]; the bundle's tokenizer makes tokens of them."""

    input: _Input
    content: str | None = TEXT_CONTENT

    def __init__(self, bundle: Bundle) -> None:
        self._preparer = _preparer(bundle)
        self._sample_bytes = _input(bundle).size * np.dtype(np.int64).itemsize
        self.input = ("text", BYTES, (BATCH,))

    def working_bytes(self, request: InferRequest) -> int:
        """See the port: the encodings of the texts, and the prepared tensor."""
        texts = _byte_strings(request)
        return len(texts) * self._sample_bytes + _BYTES_PER_TOKEN * sum(map(len, texts))

    def prepared(self, samples: Array) -> Array:
        """See the port."""
        return self._preparer.prepare([_decoded(row, data) for row, data in enumerate(samples)])


INTAKES: Mapping[str, Callable[[Bundle], Intake]] = {IMAGES: PixelIntake, JPEG: JpegIntake, TEXTS: TextIntake}
"""By the suffix of the model's name."""


def forms(bundle: Bundle) -> tuple[str, ...]:
    """The suffixes of the forms in which the model of ``bundle`` takes raw samples here."""
    manifest = bundle.manifest
    first, preprocessing = manifest.cut_points[0].tensors, manifest.preprocessing
    if isinstance(preprocessing, TextPreprocessing):  # without the extra, tokens alone are taken
        return (TEXTS,) if importlib.util.find_spec("tokenizers") is not None else ()
    if len(first) != 1 or len(first[0].shape) != 3 or not isinstance(preprocessing, Preprocessing):
        return ()
    return (IMAGES, JPEG) if takes_jpegs(manifest) else (IMAGES,)


def _input(bundle: Bundle) -> TensorSpec:
    return bundle.manifest.cut_points[0].tensors[0]


def _byte_strings(request: InferRequest) -> list[bytes]:
    return [data for tensor in request.inputs if tensor.datatype == BYTES for data in tensor.data]


def _decoded(row: int, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"text {row} is not UTF-8: byte {error.start} fits no character") from error


@lru_cache(maxsize=_KNOWN_BUNDLES)
def _preparer(bundle: Bundle) -> TextPreparer:
    """Kept, since it holds the tokenizer."""
    preprocessing = bundle.manifest.preprocessing
    assert isinstance(preprocessing, TextPreprocessing)
    return TextPreparer(preprocessing, _input(bundle).shape, bundle.read_blob)

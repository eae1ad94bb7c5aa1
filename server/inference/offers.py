"""The models that a bundle offers, their inputs and outputs, and checks of requests. Pure.

``NAME`` takes preprocessed tensors, ``NAME:images`` raw images, which the server preprocesses; both run the original
path, or the one that the name states (``NAME@PATH``, ``NAME@PATH:images``). ``NAME:jpeg`` takes images as JPEGs, one
byte string each. ``NAME:tail`` takes an activation packet and runs the tail that the packet names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.data import image_files
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import InputError, PathweaveError
from device_sdk.offload.client import sides_fit
from device_sdk.offload.open_inference import BYTES, InferRequest, InferResponse, NamedTensor
from device_sdk.offload.packing import unpack
from device_sdk.offload.remote_model import IMAGES, JPEG, named_path, takes_jpegs
from device_sdk.offload.tail import PACKET_SHAPE, TAIL
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import TensorSpec
from device_sdk.supernet.plan import Edge

_BATCH = -1
_KNOWN_BUNDLES = 64  # whose offers are kept
_FLOAT_BYTES = 4  # pixels and activations of one byte become floats


@dataclass(frozen=True)
class Work:
    """The work of a request: consecutive edges, and their input tensors, each [rows, ...]."""

    edges: tuple[Edge, ...]
    tensors: list[Array]


@dataclass(frozen=True)
class OfferedTensor:
    """An input or output of a model; -1 in ``shape`` means a dynamic axis, such as the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def described(self) -> dict[str, Any]:
        """The entry in the metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, eq=False)
class OfferedModel:
    """A model under /v2, with its inputs and outputs. ``edges``: those that it runs; a tail's come with each packet."""

    name: str
    bundle: Bundle
    inputs: tuple[OfferedTensor, ...]
    outputs: tuple[OfferedTensor, ...]
    takes: Literal["tensors", "images", "jpeg", "activations"]
    edges: tuple[Edge, ...] = ()

    @property
    def version(self) -> str:
        """The bundle's version."""
        return str(self.bundle.manifest.version)

    def metadata(self) -> dict[str, Any]:
        """The reply to GET /v2/models/NAME. ``pathweave`` is an extension that other clients ignore."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "onnxruntime_onnx",
            "inputs": [tensor.described() for tensor in self.inputs],
            "outputs": [tensor.described() for tensor in self.outputs],
            "pathweave": {
                "bundle": self.bundle.digest,
                "task": self.bundle.manifest.task.kind,
                "class_names": list(self.bundle.manifest.task.class_names),
                **({"content": image_files.CONTENT} if self.takes == "jpeg" else {}),
            },
        }

    def working_bytes(self, request: InferRequest) -> int:
        """The memory that ``take`` needs beside the tensors of ``request``.

        Raises:
            InputError: an input that should be a JPEG is none, or is too large.
        """
        if self.takes == "jpeg":
            return self._decoded_bytes(request)
        given_bytes = sum(tensor.data.nbytes for tensor in request.inputs)
        return 0 if self.takes == "tensors" else _FLOAT_BYTES * given_bytes

    def take(self, request: InferRequest) -> Work:
        """Convert ``request`` to work.

        Raises:
            InputError: a missing or unknown input, a wrong type or shape, an empty batch, or an unknown output.
            ProtocolError: an invalid activation packet, or one that does not fit this bundle.
        """
        given = {tensor.name: tensor for tensor in request.inputs}
        self._check_names("input", given, self.inputs)
        asked = [output.name for output in request.outputs]
        self._check_names("output", asked, self.outputs, all_needed=False)
        tensors = [_checked(given[expected.name], expected) for expected in self.inputs]
        if len({len(tensor) for tensor in tensors}) != 1 or not len(tensors[0]):
            raise InputError("the inputs must be batches of the same size, of at least one row")
        if self.takes == "activations":
            return self._unpacked(tensors[0])
        if self.takes == "jpeg":
            return Work(self.edges, [self._decoded(tensors[0])])
        return Work(self.edges, [self._prepare(tensors[0])] if self.takes == "images" else tensors)

    def reply(self, request: InferRequest, outputs: Sequence[Array]) -> InferResponse:
        """The reply with the outputs that ``request`` selects, by default all."""
        named = {
            tensor.name: NamedTensor(tensor.name, data) for tensor, data in zip(self.outputs, outputs, strict=True)
        }
        asked = [output.name for output in request.outputs] or list(named)
        return InferResponse(self.name, tuple(named[name] for name in asked), self.version, request.id)

    def _prepare(self, images: Array) -> Array:
        channels, height, width = self.bundle.manifest.cut_points[0].tensors[0].shape
        return prepare(images, self.bundle.manifest.preprocessing.of_images(), input_shape=(channels, height, width))

    def _decoded(self, encoded: Array) -> Array:
        """JPEGs [n] as the model's input; one is decoded at a time."""
        channels = self.bundle.manifest.preprocessing.of_images().channels
        return np.concatenate([self._prepare(image_files.decode_jpeg(data, channels=channels)) for data in encoded])

    def _decoded_bytes(self, request: InferRequest) -> int:
        """Of the prepared tensors, twice while they are joined, and of the largest image while it is decoded."""
        encoded = [data for tensor in request.inputs if tensor.datatype == BYTES for data in tensor.data]
        pixels = max((height * width for height, width in map(image_files.jpeg_size, encoded)), default=0)
        prepared = self.bundle.manifest.cut_points[0].tensors[0].size * _FLOAT_BYTES
        return 2 * len(encoded) * prepared + 2 * pixels * self.bundle.manifest.preprocessing.of_images().channels

    def _unpacked(self, packet: Array) -> Work:
        activations = unpack(packet.tobytes(), supernet=self.bundle.supernet, bundle=self.bundle.digest)
        return Work(activations.tail, list(activations.tensors))

    def _check_names(self, kind: str, names: Any, known: Sequence[OfferedTensor], *, all_needed: bool = True) -> None:
        expected = [tensor.name for tensor in known]
        unknown = [name for name in names if name not in expected]
        missing = [name for name in expected if name not in names] if all_needed else []
        if unknown:
            raise InputError(f"{self.name} has no {kind} {unknown[0][:60]!r}; it has {', '.join(expected)}")
        if missing:
            raise InputError(f"{kind} {missing[0]} is missing")


@lru_cache(maxsize=_KNOWN_BUNDLES)
def offers(bundle: Bundle) -> tuple[OfferedModel, ...]:
    """The models of a bundle: the full model for tensors, also for images if it takes images, and its tails."""
    bundle = _runnable(bundle)
    name, outputs, original = bundle.manifest.name, _outputs(bundle), bundle.supernet.original.edges
    found = [*_along(bundle, name, original)]
    if takes_jpegs(bundle.manifest):
        encoded = OfferedTensor("image", BYTES, (_BATCH,))
        found.append(OfferedModel(f"{name}{JPEG}", bundle, (encoded,), outputs, "jpeg", original))
    packet = OfferedTensor("activations", "UINT8", PACKET_SHAPE)
    return (*found, OfferedModel(f"{name}{TAIL}", bundle, (packet,), outputs, "activations"))


def offered(bundle: Bundle, model: str) -> OfferedModel | None:
    """The model of this name, also one along a named path; None if the bundle has none."""
    found = next((one for one in offers(bundle) if one.name == model), None)
    if found is not None:
        return found
    runnable = _runnable(bundle)
    try:
        path = named_path(runnable.manifest, model)
    except PathweaveError:
        return None
    if path is None:
        return None
    name = model.removesuffix(IMAGES)
    return next((one for one in _along(runnable, name, path.edges) if one.name == model), None)


@lru_cache(maxsize=_KNOWN_BUNDLES)
def _runnable(bundle: Bundle) -> Bundle:
    return bundle.runnable(runs_on())


def _along(bundle: Bundle, name: str, edges: tuple[Edge, ...]) -> Iterator[OfferedModel]:
    """The models that run ``edges``: for tensors, and for images if the bundle takes images."""
    manifest = bundle.manifest
    first, outputs = manifest.cut_points[0].tensors, _outputs(bundle)
    inputs = _offered(first, manifest.public_names.inputs)
    yield OfferedModel(name, bundle, inputs, outputs, "tensors", edges)
    preprocessing = manifest.preprocessing
    if len(first) == 1 and len(first[0].shape) == 3 and isinstance(preprocessing, Preprocessing):
        _, height, width = first[0].shape
        image = OfferedTensor("image", "UINT8", (_BATCH, height, width, preprocessing.channels))
        yield OfferedModel(f"{name}{IMAGES}", bundle, (image,), outputs, "images", edges)


def _outputs(bundle: Bundle) -> tuple[OfferedTensor, ...]:
    return _offered(bundle.manifest.cut_points[-1].tensors, bundle.manifest.public_names.outputs)


def _offered(tensors: Sequence[TensorSpec], public_names: Sequence[str]) -> tuple[OfferedTensor, ...]:
    names = public_names if len(public_names) == len(tensors) else [tensor.name for tensor in tensors]
    return tuple(
        OfferedTensor(name, NamedTensor(name, np.empty(0, tensor.dtype)).datatype, (_BATCH, *tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _checked(tensor: NamedTensor, expected: OfferedTensor) -> Array:
    if tensor.datatype != expected.datatype:
        raise InputError(f"input {expected.name} is {tensor.datatype}, the model takes {expected.datatype}")
    shape = tensor.data.shape
    if not sides_fit(shape, expected.shape):
        raise InputError(f"input {expected.name} has shape {list(shape)}, the model takes {list(expected.shape)}")
    return tensor.data

"""The models that a bundle offers, their inputs and outputs, and checks of requests. Pure.

``NAME`` takes preprocessed tensors. ``NAME:images`` takes raw images, ``NAME:jpeg`` images as JPEGs and ``NAME:texts``
texts, which the server preprocesses (``intakes``). All run the original path, or the one that the name states
(``NAME@PATH``, ``NAME@PATH:images``). ``NAME:tail`` takes an activation packet and runs the tail that the packet names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import InputError, PathweaveError
from device_sdk.offload.client import sides_fit
from device_sdk.offload.open_inference import InferRequest, InferResponse, NamedTensor
from device_sdk.offload.packing import unpack
from device_sdk.offload.remote_model import named_path, without_form
from device_sdk.offload.tail import PACKET_SHAPE, TAIL
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import TensorSpec
from device_sdk.supernet.plan import Edge
from server.inference.intakes import BATCH, FLOAT_BYTES, INTAKES, Intake, forms

_KNOWN_BUNDLES = 64  # whose offers are kept


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
    """A model under /v2, with its inputs and outputs.

    ``edges``: those that it runs; empty: a tail, whose edges come with each packet. ``intake``: prepares raw samples;
    None: it takes tensors.
    """

    name: str
    bundle: Bundle
    inputs: tuple[OfferedTensor, ...]
    outputs: tuple[OfferedTensor, ...]
    edges: tuple[Edge, ...] = ()
    intake: Intake | None = None

    @property
    def runs_tails(self) -> bool:
        """True if it takes activation packets."""
        return not self.edges

    @property
    def takes_tensors(self) -> bool:
        """True if it takes the model's own inputs."""
        return self.intake is None and not self.runs_tails

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
                **({"content": self.intake.content} if self.intake is not None and self.intake.content else {}),
            },
        }

    def working_bytes(self, request: InferRequest) -> int:
        """The memory that ``take`` needs beside the tensors of ``request``.

        Raises:
            InputError: an input that should be a JPEG is none, or is too large.
        """
        if self.intake is not None:
            return self.intake.working_bytes(request)
        return FLOAT_BYTES * sum(tensor.data.nbytes for tensor in request.inputs) if self.runs_tails else 0

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
        if self.runs_tails:
            return self._unpacked(tensors[0])
        return Work(self.edges, tensors if self.intake is None else [self.intake.prepared(tensors[0])])

    def reply(self, request: InferRequest, outputs: Sequence[Array]) -> InferResponse:
        """The reply with the outputs that ``request`` selects, by default all."""
        named = {
            tensor.name: NamedTensor(tensor.name, data) for tensor, data in zip(self.outputs, outputs, strict=True)
        }
        asked = [output.name for output in request.outputs] or list(named)
        return InferResponse(self.name, tuple(named[name] for name in asked), self.version, request.id)

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
    """The models of a bundle: the full model for tensors and for raw samples, and its tails."""
    bundle = _runnable(bundle)
    name, original = bundle.manifest.name, bundle.supernet.original.edges
    packet = OfferedTensor("activations", "UINT8", PACKET_SHAPE)
    return (*_along(bundle, name, original), OfferedModel(f"{name}{TAIL}", bundle, (packet,), _outputs(bundle)))


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
    return next((one for one in _along(runnable, without_form(model), path.edges) if one.name == model), None)


@lru_cache(maxsize=_KNOWN_BUNDLES)
def _runnable(bundle: Bundle) -> Bundle:
    return bundle.runnable(runs_on())


def _along(bundle: Bundle, name: str, edges: tuple[Edge, ...]) -> Iterator[OfferedModel]:
    """The models that run ``edges``: for tensors, and for raw samples in each form."""
    manifest, outputs = bundle.manifest, _outputs(bundle)
    inputs = _offered(manifest.cut_points[0].tensors, manifest.public_names.inputs)
    yield OfferedModel(name, bundle, inputs, outputs, edges)
    for suffix in forms(bundle):
        intake = INTAKES[suffix](bundle)
        yield OfferedModel(f"{name}{suffix}", bundle, (OfferedTensor(*intake.input),), outputs, edges, intake)


def _outputs(bundle: Bundle) -> tuple[OfferedTensor, ...]:
    return _offered(bundle.manifest.cut_points[-1].tensors, bundle.manifest.public_names.outputs)


def _offered(tensors: Sequence[TensorSpec], public_names: Sequence[str]) -> tuple[OfferedTensor, ...]:
    names = public_names if len(public_names) == len(tensors) else [tensor.name for tensor in tensors]
    return tuple(
        OfferedTensor(name, NamedTensor(name, np.empty(0, tensor.dtype)).datatype, (BATCH, *tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _checked(tensor: NamedTensor, expected: OfferedTensor) -> Array:
    if tensor.datatype != expected.datatype:
        raise InputError(f"input {expected.name} is {tensor.datatype}, the model takes {expected.datatype}")
    shape = tensor.data.shape
    if not sides_fit(shape, expected.shape):
        raise InputError(f"input {expected.name} has shape {list(shape)}, the model takes {list(expected.shape)}")
    return tensor.data

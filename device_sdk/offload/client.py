"""Client for one model of a server with the Open Inference Protocol (Pathweave, Triton, KServe)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from device_sdk.errors import DeadlineError, ProtocolError, RefusedError
from device_sdk.files.atomic import decode_json
from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    NamedTensor,
    RequestedOutput,
    decode_response,
    encode_request,
)
from device_sdk.transports.port import Clock, Deadlines, Reply, Transport, base, read_all, require_success

MAX_METADATA_BYTES = 4 * 2**20
MAX_REPLY_BYTES = 16 * 2**20
BINARY_EXTENSION = "binary_tensor_data"


class TensorMetadata(msgspec.Struct, frozen=True):
    """An input or output tensor of a model; an axis of -1 may have any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def fits(self, tensor: NamedTensor) -> bool:
        """True if ``tensor`` has this name, datatype and shape."""
        same = (tensor.name, tensor.datatype) == (self.name, self.datatype)
        return same and sides_fit(tensor.data.shape, self.shape)


@dataclass(frozen=True)
class ModelMetadata:
    """A model's inputs and outputs. Only Pathweave servers state ``class_names`` and ``bundle`` (its digest).

    ``binary``: True if the server supports binary tensor data. ``content``: media type of the byte strings that a BYTES
    input takes. ``task``: of the model, if the server states it.
    """

    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    versions: tuple[str, ...]
    class_names: tuple[str, ...] | None
    bundle: str | None
    binary: bool = False
    content: str | None = None
    task: str | None = None


class _Pathweave(msgspec.Struct):
    task: str | None = None
    bundle: str | None = None
    content: str | None = None
    class_names: tuple[str, ...] | None = None


class _ModelReply(msgspec.Struct):
    name: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    versions: tuple[str, ...] | None = None
    pathweave: _Pathweave | None = None


class _ServerReply(msgspec.Struct):
    extensions: tuple[str, ...] | None = None


_Decoded = TypeVar("_Decoded")


def sides_fit(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """True if ``shape`` matches ``wanted``, in which an axis of -1 matches any size."""
    return len(shape) == len(wanted) and all(side in (-1, actual) for actual, side in zip(shape, wanted, strict=True))


def request_overhead_bytes(model: str) -> int:
    """Bytes that the protocol adds to a packet of activations for ``model``, compared with an empty request."""
    request = InferRequest(
        (NamedTensor("activations", np.zeros((1, 0), np.uint8)),), (RequestedOutput("logits", True),), id="0" * 32
    )
    body, headers = encode_request(request, binary=True)
    lines = sum(len(f"{name}: {value}\r\n") for name, value in headers.items())
    return len(body) + lines + len(f"/v2/models/{quote(model, safe='')}/infer")


class InferenceClient:
    """Sends inference requests for one model to one server. Thread-safe.

    ``base_url``: the part before ``/v2``. ``version``: of the model; None for the one that the server chooses. Each
    request has a unique id. A reply is accepted only if it repeats the id and matches the model's metadata, so stale or
    mismatched replies are refused.

    Raises:
        UsageError: ``base_url`` is not an address.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        transport: Transport,
        *,
        version: int | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        clock: Clock = time.monotonic,
    ) -> None:
        self._base = base(base_url) + "/v2"
        self._url = f"{self._base}/models/{quote(model, safe='')}" + ("" if version is None else f"/versions/{version}")
        self._model = model
        self._transport = transport
        self._max_reply_bytes = max_reply_bytes
        self._clock = clock

    def metadata(self, timeout_s: float) -> ModelMetadata:
        """Request the model's metadata.

        Raises:
            TransferError: no connection, time-out, refused, or a reply that breaks the protocol.
        """
        deadline = self._clock() + timeout_s
        reply = self._get(self._url, _ModelReply, deadline, what=f"metadata of the model {self._model}")
        if reply.name != self._model:
            raise ProtocolError(f"the server sent metadata of {reply.name[:80]!r} instead of {self._model}")
        binary = False
        with suppress(RefusedError):  # a server without metadata of its own gets plain JSON
            server = self._get(self._base, _ServerReply, deadline, what="metadata of the server")
            binary = BINARY_EXTENSION in (server.extensions or ())
        own = reply.pathweave or _Pathweave()
        return ModelMetadata(
            reply.inputs,
            reply.outputs,
            reply.versions or (),
            own.class_names,
            own.bundle,
            binary,
            own.content,
            own.task,
        )

    def infer(
        self, inputs: Sequence[NamedTensor], *, timeout_s: float, metadata: ModelMetadata | None = None
    ) -> InferResponse:
        """All outputs of the model for ``inputs``. ``metadata``: of the model; None requests it first.

        Raises:
            TransferError: no connection, time-out, refused, or a reply that breaks the protocol: an id, model, version,
                output, datatype, shape or batch that does not match, NaN or infinity.
        """
        deadline = self._clock() + timeout_s
        if metadata is None:
            metadata = self.metadata(timeout_s)
        request = InferRequest(
            tuple(inputs),
            tuple(RequestedOutput(output.name, metadata.binary) for output in metadata.outputs),
            id=uuid.uuid4().hex,
        )
        body, headers = encode_request(request, binary=metadata.binary)
        with self._transport.send(
            "POST",
            f"{self._url}/infer",
            headers=headers,
            body=body,
            deadlines=self._left(deadline),
            max_bytes=self._max_reply_bytes,
        ) as reply:
            require_success(reply, what=f"inference by the model {self._model}")
            response = decode_response(read_all(reply), header_length=_header_length(reply))
        self._check(response, request, metadata)
        return response

    def _get(self, url: str, kind: type[_Decoded], deadline: float, *, what: str) -> _Decoded:
        with self._transport.send("GET", url, deadlines=self._left(deadline), max_bytes=MAX_METADATA_BYTES) as reply:
            require_success(reply, what=what)
            data = read_all(reply)
        try:
            return decode_json(data, kind)
        except ValueError as error:
            raise ProtocolError(f"{what}: {error}") from error

    def _left(self, deadline: float) -> Deadlines:
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise DeadlineError("no time is left for the request")
        return Deadlines(idle_s=left_s, total_s=left_s)

    def _check(self, response: InferResponse, request: InferRequest, metadata: ModelMetadata) -> None:
        if response.id != request.id:
            raise ProtocolError("the reply answers another request")
        if response.model_name != self._model:
            raise ProtocolError(f"the reply comes from another model, {response.model_name[:80]!r}")
        if response.model_version and metadata.versions and response.model_version not in metadata.versions:
            raise ProtocolError(f"the reply comes from another version, {response.model_version[:80]!r}")
        _check_outputs(response.outputs, metadata.outputs)
        batches = {tensor.data.shape[0] for tensor in _batched(request.inputs, metadata.inputs)}
        batches |= {tensor.data.shape[0] for tensor in _batched(response.outputs, metadata.outputs)}
        if len(batches) > 1:
            raise ProtocolError(f"request and reply have different batch sizes: {sorted(batches)}")


def _check_outputs(outputs: Sequence[NamedTensor], announced: Sequence[TensorMetadata]) -> None:
    expected = {tensor.name: tensor for tensor in announced}
    if {tensor.name for tensor in outputs} != set(expected):
        raise ProtocolError("the reply has other outputs than the model")
    for tensor in outputs:
        if not expected[tensor.name].fits(tensor):
            raise ProtocolError(
                f"output {tensor.name} is {tensor.datatype} {list(tensor.data.shape)}, not as in the metadata "
                f"{expected[tensor.name].datatype} {list(expected[tensor.name].shape)}"
            )
        if tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
            raise ProtocolError(f"output {tensor.name} holds NaN or infinity")


def _batched(tensors: Sequence[NamedTensor], announced: Sequence[TensorMetadata]) -> Iterable[NamedTensor]:
    """The tensors whose first axis is the batch axis."""
    names = {tensor.name for tensor in announced if tensor.shape[:1] == (-1,)}
    return (tensor for tensor in tensors if tensor.name in names and tensor.data.ndim)


def _header_length(reply: Reply) -> int | None:
    text = reply.headers.get(HEADER_LENGTH.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ProtocolError(f"{HEADER_LENGTH} is {text[:40]!r}")
    return int(text)

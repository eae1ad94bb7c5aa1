"""Sending hard samples to a server's model; after a failure or time-out the device's result is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from device_sdk.data.kinds.texts import TextPreprocessing, lengthened
from device_sdk.data.preprocessing import AnyPreprocessing, prepare
from device_sdk.errors import PathweaveError, UsageError
from device_sdk.offload.agreement import Agreement, RawBatch, agree, fill
from device_sdk.offload.client import ModelMetadata, request_overhead_bytes
from device_sdk.offload.open_inference import NamedTensor
from device_sdk.offload.remote_calls import (
    CircuitBreaker,
    RemoteCalls,
    RemoteReply,
    checked_logits,
    default_transport,
    make_client,
)
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.runtimes.port import Array
from device_sdk.transports.port import Clock, Transport


class AskClient:
    """Runs samples on the server's model. Never raises, never exceeds the time-out. Thread-safe.

    Before the first request, and after any failure, the server model's metadata is checked against the device's model.
    ``class_names``, ``input_shape`` [c, h, w] and ``preprocessing`` are the device's, and so
    are ``output_shape`` without the batch, by default one logit per class, and ``task``. ``answered`` is called after
    each answered request with its bytes, samples and seconds; ``failed`` after each call without an answer.

    Raises:
        UsageError: there is no transport for the server's URL.
    """

    def __init__(
        self,
        model: RemoteModel,
        *,
        class_names: Sequence[str],
        input_shape: Sequence[int],
        preprocessing: AnyPreprocessing,
        output_shape: Sequence[int] = (),
        task: str = "classification",
        input_type: str = "float32",
        transport: Transport | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock = time.monotonic,
        answered: Callable[[int, int, float], None] = lambda size_bytes, samples, seconds: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._answered, self._failed, self._clock = answered, failed, clock
        self._overhead_bytes = request_overhead_bytes(model.model)
        self._model = model
        self._class_names = tuple(class_names)
        self._input_shape = tuple(input_shape)
        self._preprocessing = preprocessing
        self._output_shape = tuple(output_shape) or (len(self._class_names),)
        self._task, self._input_type = task, input_type
        self._transport = transport or default_transport(model)
        self._client = make_client(model, self._transport, output_shape=self._output_shape, clock=clock)
        self._calls = RemoteCalls(timeout_s=model.timeout_s, breaker=breaker, clock=clock)
        self._agreement: Agreement | None = None

    @property
    def model(self) -> RemoteModel:
        """The remote model."""
        return self._model

    @property
    def ready(self) -> bool:
        """True if a request would be sent now: not in the pause after failures, nor after ``close``."""
        return self._calls.ready

    def answer(self, tensors: Array, raw: RawBatch | None, *, digest: str = "") -> RemoteReply:
        """The server's outputs [n, *output_shape] for all samples, or the reason of the failure.

        ``tensors``: prepared, float32 [n, *input_shape]; ``raw``: the same samples as pixels, uint8 [n, h, w, c], or as
        texts; None: pixels are recovered from the tensors if the server takes images. Tensors of a plan with another
        input size are prepared again from pixels; tokens are padded. More than ``max_batch`` samples are sent in
        several requests; if one fails, all do. ``digest``: of the bundle that the server's model must come from; empty
        for any.
        """
        if len(tensors) and tensors.shape[1:] != self._input_shape:
            tensors = self._at_own_size(tensors, raw)
        unfit = self._unfit(tensors, raw)
        if unfit is not None:
            return RemoteReply(None, unfit)
        if len(tensors) == 0:
            return RemoteReply(np.empty((0, *self._output_shape), np.float32), None)
        reply = self._calls.run(lambda deadline: self._ask(tensors, raw, digest, deadline))
        if reply.output is None:
            self._agreement = None
            self._failed()
        return reply

    def misfit(self) -> str | None:
        """Why the server's model cannot stand in for the device's; None if it can, or does not answer now."""
        try:
            metadata = self._client.metadata(self._model.timeout_s)
            self._agreement_with(metadata)
        except UsageError as error:
            return str(error)
        except PathweaveError:
            return None
        return None

    def try_again(self) -> None:
        """End the pause after failures: the server was seen to answer."""
        self._calls.try_again()

    def close(self) -> None:
        """Send nothing from now on. Idempotent."""
        self._calls.close()
        self._transport.close()

    def request_bytes(self, tensors: Array, raw: RawBatch | None) -> int:
        """Bytes on the wire of one request with these samples, once the model's metadata is known; else 0."""
        agreement = self._agreement
        if agreement is None:
            return 0
        filled = self._filled(agreement, tensors, raw)
        return filled.size_bytes + self._overhead_bytes

    @property
    def digest(self) -> str:
        """Digest of the bundle of the server's model; empty if it states none, or before the first request."""
        return "" if self._agreement is None else self._agreement.metadata.bundle or ""

    def _at_own_size(self, tensors: Array, raw: RawBatch | None) -> Array:
        if isinstance(self._preprocessing, TextPreprocessing):
            rows, tokens = self._input_shape
            shorter = tensors.ndim == 3 and tensors.shape[1] == rows and tensors.shape[2] < tokens
            return lengthened(tensors, self._preprocessing) if shorter else tensors
        if not isinstance(raw, np.ndarray) or raw.ndim != 4 or len(raw) != len(tensors) or len(self._input_shape) != 3:
            return tensors
        channels, height, width = self._input_shape
        return prepare(raw, self._preprocessing.of_images(), input_shape=(channels, height, width))

    def _unfit(self, tensors: Array, raw: RawBatch | None) -> str | None:
        """The local reason not to send these samples, or None."""
        if self._model.privacy != "inputs":
            return f"the privacy setting is {self._model.privacy}"
        if self._calls.closed:
            return "it was closed"
        if tensors.shape[1:] != self._input_shape:
            return f"the tensors are {list(tensors.shape[1:])}, not {list(self._input_shape)}"
        if raw is None:
            return None if np.isfinite(tensors).all() else "the tensors hold NaN or infinity"
        if not isinstance(raw, np.ndarray):
            return None if len(raw) == len(tensors) else "the texts are not those of the tensors"
        fits = raw.ndim == 4 and raw.dtype == np.uint8 and len(raw) == len(tensors)
        return None if fits and bool(raw.size) == bool(tensors.size) else "the images are not those of the tensors"

    def _ask(self, tensors: Array, raw: RawBatch | None, digest: str, deadline: float) -> Array:
        """In the worker thread: 1 check the metadata, 2 send the samples in batches, 3 concatenate the logits."""
        agreement = self._agreed(deadline)  # 1
        if digest and agreement.metadata.bundle != digest:
            raise UsageError(
                f"the server's {self._model.model} is not the one that the plan was made for",
                hint="calibrate again with this server",
            )
        size, outputs = self._model.max_batch, []
        for start in range(0, len(tensors), size):  # 2
            batch = slice(start, start + size)
            filled = self._filled(agreement, tensors[batch], None if raw is None else raw[batch])
            left_s, started = self._calls.left_s(deadline), self._clock()
            response = self._client.infer([filled], timeout_s=left_s, metadata=agreement.metadata)
            outputs.append(checked_logits(response.outputs[0].data, samples=len(filled.data), shape=self._output_shape))
            size_bytes = filled.size_bytes + self._overhead_bytes
            self._answered(size_bytes, len(filled.data), self._clock() - started)
        return np.concatenate(outputs)  # 3

    def _filled(self, agreement: Agreement, tensors: Array, raw: RawBatch | None) -> NamedTensor:
        quality = self._model.jpeg_quality
        return fill(agreement, tensors, raw, preprocessing=self._preprocessing, jpeg_quality=quality)

    def _agreed(self, deadline: float) -> Agreement:
        agreement = self._agreement
        if agreement is not None:
            return agreement
        metadata = self._client.metadata(self._calls.left_s(deadline))
        agreement = self._agreement_with(metadata)
        self._calls.left_s(deadline)  # raises if the deadline passed, so that a late result is not cached
        self._agreement = agreement
        return agreement

    def _agreement_with(self, metadata: ModelMetadata) -> Agreement:
        return agree(
            metadata,
            class_names=self._class_names,
            input_shape=self._input_shape,
            output_shape=self._output_shape,
            task=self._task,
            input_type=self._input_type,
            of_texts=isinstance(self._preprocessing, TextPreprocessing),
        )

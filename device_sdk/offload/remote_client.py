"""Shared by escalation and tails: transport, client and checks of the returned logits."""

from __future__ import annotations

import numpy as np

from device_sdk.errors import ProtocolError
from device_sdk.offload.client import InferenceClient
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.runtimes.port import Array
from device_sdk.transports.port import Clock, Transport

_REPLY_BYTES_PER_VALUE = 32  # upper bound of a float as JSON text
_REPLY_BYTES = 64 * 1024  # names, ids, white space


def default_transport(model: RemoteModel) -> Transport:
    """The transport to the server of ``model``.

    Raises:
        UsageError: there is no transport for the server's URL.
    """
    from device_sdk.transports import make_transport

    return make_transport(model.server, token=model.token)


def make_client(model: RemoteModel, transport: Transport, *, classes: int, clock: Clock) -> InferenceClient:
    """A client whose reply limit fits logits of ``classes`` for ``max_batch`` samples."""
    values = min(model.max_batch, 2**20) * classes
    limit = _REPLY_BYTES + _REPLY_BYTES_PER_VALUE * values
    return InferenceClient(model.server, model.model, transport, max_reply_bytes=limit, clock=clock)


def checked_logits(output: Array, *, samples: int, classes: int) -> Array:
    """A reply's output as float32 logits [samples, classes]. Raises ProtocolError for another shape or overflow."""
    if output.shape != (samples, classes):
        raise ProtocolError(f"the reply's shape is {list(output.shape)} for {samples} samples")
    with np.errstate(over="ignore"):
        logits = output.astype(np.float32, copy=False)
    if not np.isfinite(logits).all():
        raise ProtocolError("the reply's values are too large")
    return logits

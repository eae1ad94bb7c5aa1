"""``/v2``: the Open Inference Protocol."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from flask import Blueprint, Response, jsonify, request

from device_sdk import __version__
from device_sdk.errors import ProtocolError
from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    decode_request,
    encode_response,
)
from device_sdk.offload.packing import HEAD_BYTES, bundle_of_packet
from device_sdk.offload.remote_model import bundle_of
from server.access.authentication import client
from server.access.route import Route
from server.access.scopes import Scope
from server.errors import NotFoundError, OverloadedError, TooLargeError
from server.http.connections import CLIENT_GONE, RECEIVED_S
from server.http.request_body import ENCODINGS, compress, read_body, reserve
from server.http.serving import Lane
from server.inference.offers import OfferedModel, Work, offered
from server.inference.queue import ASK_AFTER_S
from server.routes.sender import bundle_for_sender
from server.services import Services
from server.state.catalogue import ServedBundle

# JSON numbers take many times their size as Python objects, so large JSON is decoded one at a time. The interpreter
# lock would prevent parallel decoding anyway.
_decoding = threading.Lock()
_LARGE_JSON_BYTES = 256 * 1024


def routes(services: Services) -> Blueprint:
    """The routes of the protocol."""
    blueprint = Blueprint("inference", __name__, url_prefix="/v2")
    route, public = partial(Route, scope=Scope.DEVICE), partial(Route, scope=None, lane=Lane.QUICK)
    infer = route(_infer, services, lane=Lane.INFERENCE, methods=("POST",))
    blueprint.add_url_rule("", "server", route(_server))
    blueprint.add_url_rule("/health/live", "live", public(_live))
    blueprint.add_url_rule("/health/ready", "ready", public(_ready, services))
    for prefix in ("/models/<model>", "/models/<model>/versions/<version>"):
        which = "version" if "version" in prefix else "model"
        blueprint.add_url_rule(prefix, which, route(_metadata, services))
        blueprint.add_url_rule(f"{prefix}/ready", f"{which}_ready", route(_model_ready, services))
        blueprint.add_url_rule(f"{prefix}/infer", f"{which}_infer", infer)
    return blueprint


def _server() -> Response:
    return jsonify({"name": "pathweave", "version": __version__, "extensions": ["binary_tensor_data"]})


def _live() -> Response:
    return jsonify({"live": True})


def _ready(services: Services) -> Response:
    if services.queue.closed:
        raise OverloadedError("the server is shutting down")
    return jsonify({"ready": True})


def _metadata(services: Services, model: str, version: str | None = None) -> Response:
    return jsonify(_find(services, model, version).metadata())


def _model_ready(services: Services, model: str, version: str | None = None) -> Response:
    return jsonify({"name": _find(services, model, version).name, "ready": True})


def _infer(services: Services, model: str, version: str | None = None) -> Response:
    """1. find the model; 2. admit the request; 3. read, 4. check, 5. run; 6. reply."""
    found = _find(services, model, version)
    received_s = request.environ.get(RECEIVED_S, time.monotonic())
    with services.queue.admit(client().name):
        if time.monotonic() - received_s >= ASK_AFTER_S and _client_gone()():
            raise OverloadedError("the client has gone")  # as it does when its deadline has passed
        asked = _read(services)
        if version is None:
            found = _of_packet(services, found, asked)
        work = _take(found, asked, max_rows=services.settings.max_rows)
        loaded = services.models.load(found.bundle, work.edges)
        outputs = services.queue.run(
            loaded,
            work.tensors,
            timeout_s=max(0.0, received_s + services.settings.infer_timeout_s - time.monotonic()),
            abandoned=_client_gone(),
        )
        return _write(asked, found.reply(asked, outputs))


def _client_gone() -> Callable[[], bool]:
    gone: Callable[[], bool] = request.environ.get(CLIENT_GONE, lambda: False)
    return gone


def _take(model: OfferedModel, asked: InferRequest, *, max_rows: int) -> Work:
    """Check the request, and reserve the memory for its tensors as the model takes them."""
    rows = max((len(tensor.data) for tensor in asked.inputs if tensor.data.ndim), default=0)
    _check_rows(rows, max_rows)
    reserve(request, model.working_bytes(asked))
    work = model.take(asked)
    _check_rows(len(work.tensors[0]), max_rows)
    return work


def _check_rows(rows: int, max_rows: int) -> None:
    if rows > max_rows:
        raise TooLargeError(f"the request has {rows} rows, the limit is {max_rows}; send several requests")


def _find(services: Services, model: str, version: str | None) -> OfferedModel:
    """A model in a version by number, else in that of the device that asks, as rollouts say."""
    name = bundle_of(model)
    if version is None:
        try:
            served = bundle_for_sender(services, name)
        except NotFoundError:
            raise _no_model(model) from None
    else:
        served = _by_number(services, model, version)
    found = offered(served.bundle, model)
    if found is None:
        raise _no_model(model)
    return found


def _by_number(services: Services, model: str, version: str) -> ServedBundle:
    by_number = {str(one.version): one for one in services.bundles.listing().bundles.get(bundle_of(model), ())}
    if not by_number:
        raise _no_model(model)
    if version not in by_number:
        known = ", ".join(by_number)
        raise NotFoundError(f"there is no version {version!r:.40} of {model[:80]}; there is {known:.200}")
    return by_number[version]


def _no_model(model: str) -> NotFoundError:
    return NotFoundError(f"there is no model {model[:80]!r}")


def _of_packet(services: Services, found: OfferedModel, asked: InferRequest) -> OfferedModel:
    """For a tail, the model of the bundle that the packet names, whichever version it is; else ``found``."""
    if not found.runs_tails or not asked.inputs:
        return found
    digest = bundle_of_packet(asked.inputs[0].data.reshape(-1)[:HEAD_BYTES].tobytes())
    for one in services.bundles.listing().bundles.get(bundle_of(found.name), ()):
        if one.bundle.digest == digest:
            return offered(one.bundle, found.name) or found
    return found


def _read(services: Services) -> InferRequest:
    body = read_body(request, max_bytes=services.settings.max_body_bytes)
    length = _header_length()
    if min(len(body), len(body) if length is None else length) > services.settings.max_json_bytes:
        raise TooLargeError(
            f"the JSON of the body has more than {services.settings.max_json_bytes} bytes; send the tensors as bytes"
        )
    large = (len(body) if length is None else length) > _LARGE_JSON_BYTES
    with _decoding if large else contextlib.nullcontext():
        return decode_request(body, header_length=length)


def _header_length() -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ProtocolError(f"{HEADER_LENGTH} is {text[:40]!r}")
    return int(text)


def _write(asked: InferRequest, response: InferResponse) -> Response:
    if asked.outputs:
        binary = {output.name for output in asked.outputs if output.binary}
    else:
        binary = {tensor.name for tensor in response.outputs} if asked.binary_output else set()
    body, headers = encode_response(response, binary=binary)
    accepted = {name.lower() for name, quality in request.accept_encodings if quality > 0}
    encoding = next((name for name in ENCODINGS if name in accepted), None)
    if encoding is not None:
        body, headers = compress(body, encoding), {**headers, "Content-Encoding": encoding}
    return Response(body, headers={**headers, "Vary": "Accept-Encoding"})

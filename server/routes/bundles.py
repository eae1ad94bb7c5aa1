"""``/v1/bundles``: bundles for devices to download."""

from __future__ import annotations

import hashlib
import io
import re
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from flask import Blueprint, Response, jsonify, request, send_file
from werkzeug.wsgi import wrap_file

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.signing.key_list import KEYS
from device_sdk.signing.release import RELEASE
from server.catalogue import Catalogue, ServedBundle
from server.errors import NotFoundError
from server.file_section import FileSection
from server.services import Services

_BYTES = "application/octet-stream"
_FOR_EVER_S = 365 * 24 * 3600
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


def bundle_routes(services: Services) -> Blueprint:
    """The routes of bundles."""
    routes, catalogue = Blueprint("bundles", __name__, url_prefix="/v1/bundles"), services.catalogue
    routes.add_url_rule("", "list", partial(_list, catalogue))
    routes.add_url_rule("/<name>", "describe", partial(_describe, catalogue))
    routes.add_url_rule(f"/<name>/{MANIFEST}", "manifest", partial(_manifest, catalogue))
    routes.add_url_rule(f"/<name>/{SIGNATURE}", "signature", partial(_signature, catalogue))
    routes.add_url_rule(f"/<name>/{RELEASE}", "release", partial(_release, catalogue))
    routes.add_url_rule(f"/<name>/{KEYS}/<number>.json", "key_list", partial(_key_list, catalogue))
    routes.add_url_rule(f"/<name>/{BLOBS}/<blob>", "blob", partial(_blob, catalogue))
    return routes


def summary(served: ServedBundle) -> dict[str, Any]:
    """The entry of a bundle in the list."""
    return {
        "name": served.name,
        "version": served.version,
        "digest": served.bundle.digest,
        "signed": served.bundle.has_signature,
        "size_bytes": served.size_bytes,
    }


def _list(catalogue: Catalogue) -> Response:
    return jsonify({"bundles": [summary(served) for served in catalogue.listing().served]})


def _describe(catalogue: Catalogue, name: str) -> Response:
    served = catalogue.find(name)
    return jsonify({**summary(served), "blobs": dict(served.blob_sizes)})


def _manifest(catalogue: Catalogue, name: str) -> Response:
    served = catalogue.find(name)
    return _replaceable(served.manifest, served.bundle.digest, mimetype="application/json")


def _signature(catalogue: Catalogue, name: str) -> Response:
    signature = catalogue.find(name).signature
    if signature is None:
        raise NotFoundError(f"the bundle {name} is not signed")
    return _replaceable(signature, hashlib.sha256(signature).hexdigest(), mimetype=_BYTES)


def _release(catalogue: Catalogue, name: str) -> Response:
    release = catalogue.find(name).release
    if release is None:
        raise NotFoundError(f"the bundle {name} is not released", hint="pathweave sign release sign")
    return _replaceable(release, hashlib.sha256(release).hexdigest(), mimetype="application/json")


def _key_list(catalogue: Catalogue, name: str, number: str) -> Response:
    if not _NUMBER.fullmatch(number):
        raise NotFoundError("key lists have numbers from 1 on")
    data = catalogue.find_key_list(name, int(number))
    return _replaceable(data, hashlib.sha256(data).hexdigest(), mimetype="application/json")


def _blob(catalogue: Catalogue, name: str, blob: str) -> Response:
    # Only names in a manifest map to a file: 64 hexadecimal digits, checked when the manifest was read.
    try:
        reply = _conditional(catalogue.find_blob(name, blob), blob, mimetype=_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"the bundle {name} was just replaced", hint="fetch its manifest again") from error
    reply.headers["Cache-Control"] = f"private, max-age={_FOR_EVER_S}, immutable"
    return reply


def _replaceable(data: bytes, digest: str, *, mimetype: str) -> Response:
    reply = _conditional(io.BytesIO(data), digest, mimetype=mimetype)
    reply.headers["Cache-Control"] = "no-cache"
    return reply


def _conditional(source: Path | io.BytesIO, etag: str, *, mimetype: str) -> Response:
    """The whole file, a range of it, or 304, by an ETag that is equal on all replicas."""
    reply = send_file(source, mimetype=mimetype, etag=etag, conditional=True)
    if reply.status_code == 206:
        _send_section(reply, source)
    return reply


def _send_section(reply: Response, source: Path | io.BytesIO) -> None:
    """Let the server itself send the range, as it sends whole files: no thread waits for a slow client."""
    start, stop = reply.content_range.start, reply.content_range.stop
    assert start is not None
    assert stop is not None
    file = source.open("rb") if isinstance(source, Path) else io.BytesIO(source.getvalue())
    reply.close()
    reply.response = wrap_file(request.environ, cast(BinaryIO, FileSection(file, start, stop)))

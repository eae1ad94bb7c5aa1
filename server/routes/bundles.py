"""``/v1/bundles``: bundles for devices to download."""

from __future__ import annotations

import hashlib
import io
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from flask import Blueprint, Response, jsonify, request, send_file
from werkzeug.wsgi import wrap_file

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.signing.release import KEYS, RELEASE
from server.access.route import JSON, Route
from server.access.scopes import Scope
from server.errors import NotFoundError
from server.http.serving import Lane
from server.services import Services
from server.state.catalogue import Catalogue, ServedBundle

_BYTES = "application/octet-stream"
_FOR_EVER_S = 365 * 24 * 3600
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


def routes(services: Services) -> Blueprint:
    """The routes of bundles."""
    blueprint, catalogue = Blueprint("bundles", __name__, url_prefix="/v1/bundles"), services.catalogue
    route = partial(Route, scope=Scope.DEVICE, lane=Lane.DELIVERY)
    blueprint.add_url_rule("", "list", route(_list, catalogue))
    blueprint.add_url_rule("/<name>", "describe", route(_describe, catalogue))
    blueprint.add_url_rule(f"/<name>/{MANIFEST}", "manifest", route(_manifest, catalogue))
    blueprint.add_url_rule(f"/<name>/{SIGNATURE}", "signature", route(_signature, catalogue))
    blueprint.add_url_rule(f"/<name>/{RELEASE}", "release", route(_release, catalogue))
    blueprint.add_url_rule(f"/<name>/{KEYS}/<number>.json", "key_list", route(_key_list, catalogue))
    blueprint.add_url_rule(f"/<name>/{BLOBS}/<blob>", "blob", route(_blob, catalogue))
    return blueprint


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
    return _replaceable(catalogue.find(name).manifest)


def _signature(catalogue: Catalogue, name: str) -> Response:
    signature = catalogue.find(name).signature
    if signature is None:
        raise NotFoundError(f"the bundle {name} is not signed")
    return _replaceable(signature, mimetype=_BYTES)


def _release(catalogue: Catalogue, name: str) -> Response:
    release = catalogue.find(name).release
    if release is None:
        raise NotFoundError(f"the bundle {name} is not released", hint="pathweave sign release sign")
    return _replaceable(release)


def _key_list(catalogue: Catalogue, name: str, number: str) -> Response:
    if not _NUMBER.fullmatch(number):
        raise NotFoundError("key lists have numbers from 1 on")
    return _replaceable(catalogue.find_key_list(name, int(number)))


def _blob(catalogue: Catalogue, name: str, blob: str) -> Response:
    # Only names in a manifest map to a file: 64 hexadecimal digits, checked when the manifest was read.
    try:
        reply = _conditional(catalogue.find_blob(name, blob), blob, mimetype=_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"the bundle {name} was just replaced", hint="fetch its manifest again") from error
    reply.headers["Cache-Control"] = f"private, max-age={_FOR_EVER_S}, immutable"
    return reply


def _replaceable(data: bytes, *, mimetype: str = JSON) -> Response:
    reply = _conditional(io.BytesIO(data), hashlib.sha256(data).hexdigest(), mimetype=mimetype)
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


class FileSection:
    """The bytes ``start`` to ``stop`` of ``file``: what waitress asks of a file. Closing it closes ``file``."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self._file, self._start, self._size = file, start, stop - start
        self.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to ``offset``, relative to the section."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}[whence]
        return self._file.seek(self._start + max(0, base + offset)) - self._start

    def tell(self) -> int:
        """The position in the section."""
        return self._file.tell() - self._start

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, all that are left if it is negative."""
        left = max(0, self._size - self.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

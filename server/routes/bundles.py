"""``/v1/bundles``: bundles for devices to download: the highest version of each, and every version by its number."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from flask import Blueprint, Response, jsonify, request, send_file
from werkzeug.wsgi import wrap_file

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.delivery.assignment import VERSIONS
from device_sdk.signing.release import KEYS, RELEASE
from device_sdk.signing.rollback import ROLLBACK
from server.access.route import JSON, Route
from server.access.scopes import Scope
from server.errors import NotFoundError
from server.http.serving import Lane
from server.services import Services
from server.state.catalogue import ServedBundle

_BYTES = "application/octet-stream"
# Only clients that say so are sent elsewhere: SDKs do not follow redirects, so that their token goes nowhere else.
_TAKES, _SIGNED_URL = "Pathweave-Takes", "signed-url"
_FOR_EVER_S = 365 * 24 * 3600
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


def routes(services: Services) -> Blueprint:
    """The routes of bundles."""
    blueprint, bundles = Blueprint("bundles", __name__, url_prefix="/v1/bundles"), _Versions(services)
    route = partial(Route, scope=Scope.DEVICE, lane=Lane.DELIVERY)
    first = "/bundles/0/name"
    blueprint.add_url_rule("", "list", route(_list, bundles, gives={"name": first, "model": first}))
    blueprint.add_url_rule("/<name>", "describe", route(_describe, bundles))
    for place, kind in (("/<name>", ""), (f"/<name>/{VERSIONS}/<version>", "version_")):
        for path, endpoint, handler in _FILES:
            blueprint.add_url_rule(f"{place}/{path}", kind + endpoint, route(handler, bundles))
    blueprint.add_url_rule(f"/<name>/{VERSIONS}/<version>/{ROLLBACK}", "rollback", route(_rollback, bundles))
    return blueprint


class _Versions:
    """Bundles by address. Without a version an address has the one for devices that do not ask which is theirs."""

    def __init__(self, services: Services) -> None:
        self.store, self._rollouts = services.bundles, services.rollouts

    def find(self, name: str, version: str | None) -> ServedBundle:
        """A version of a bundle.

        Raises:
            NotFoundError: there is none. ConflictError: the one that a rollout names is not served any more.
        """
        listing = self.store.listing()
        if version is None:
            served = [one.version for one in listing.versions(name)]
            return listing.version(name, self._rollouts.version_without_asking(name, served))
        if not _NUMBER.fullmatch(version):
            raise NotFoundError("versions are numbers from 1 on")
        return listing.version(name, int(version))


def summary(served: ServedBundle) -> dict[str, Any]:
    """The entry of a bundle in the list."""
    return {
        "name": served.name,
        "version": served.version,
        "digest": served.bundle.digest,
        "signed": served.bundle.has_signature,
        "size_bytes": served.size_bytes,
    }


def _list(bundles: _Versions) -> Response:
    return jsonify({"bundles": [summary(served) for served in bundles.store.listing().served]})


def _describe(bundles: _Versions, name: str) -> Response:
    served = bundles.find(name, None)
    return jsonify({**summary(served), "blobs": dict(served.blob_sizes)})


def _manifest(bundles: _Versions, name: str, version: str | None = None) -> Response:
    return _replaceable(bundles.find(name, version).manifest)


def _signature(bundles: _Versions, name: str, version: str | None = None) -> Response:
    signature = bundles.find(name, version).signature
    if signature is None:
        raise NotFoundError(f"the bundle {name} is not signed")
    return _replaceable(signature, mimetype=_BYTES)


def _release(bundles: _Versions, name: str, version: str | None = None) -> Response:
    release = bundles.find(name, version).release
    if release is None:
        raise NotFoundError(f"the bundle {name} is not released", hint="pathweave sign release sign")
    return _replaceable(release)


def _rollback(bundles: _Versions, name: str, version: str) -> Response:
    rollback = bundles.find(name, version).rollback
    if rollback is None:
        raise NotFoundError(f"there is no signed rollback to {name} {version}", hint="pathweave sign rollback")
    return _replaceable(rollback)


def _key_list(bundles: _Versions, name: str, number: str, version: str | None = None) -> Response:
    if not _NUMBER.fullmatch(number):
        raise NotFoundError("key lists have numbers from 1 on")
    bundles.find(name, version)
    return _replaceable(bundles.store.find_key_list(name, int(number)))


def _blob(bundles: _Versions, name: str, blob: str, version: str | None = None) -> Response:
    # Only names in a manifest map to a file: 64 hexadecimal digits, checked when the manifest was read.
    if version is not None and blob not in bundles.find(name, version).blob_sizes:
        raise NotFoundError(f"the bundle {name} {version} has no such blob")
    if request.method == "GET" and request.headers.get(_TAKES) == _SIGNED_URL:
        address = bundles.store.signed_url(name, blob)
        if address is not None:
            # The address is a secret for a while: it is neither cached nor in a body that proxies log.
            return Response(status=307, headers={"Location": address, "Cache-Control": "no-store", "Vary": _TAKES})
    try:
        reply = _conditional(bundles.store.find_blob(name, blob), blob, mimetype=_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"the bundle {name} was just replaced", hint="fetch its manifest again") from error
    reply.headers["Cache-Control"] = f"private, max-age={_FOR_EVER_S}, immutable"
    return reply


_FILES: tuple[tuple[str, str, Callable[..., Response]], ...] = (
    (MANIFEST, "manifest", _manifest),
    (SIGNATURE, "signature", _signature),
    (RELEASE, "release", _release),
    (f"{KEYS}/<number>.json", "key_list", _key_list),
    (f"{BLOBS}/<blob>", "blob", _blob),
)


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

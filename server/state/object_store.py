"""Objects in S3, Google or Azure storage, with the conditional writes that make publishing race-free."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from device_sdk.errors import StorageError, UsageError
from device_sdk.extras import require

SCHEMES = ("s3", "gs", "az")
_CONNECT_TIMEOUT, _TIMEOUT = timedelta(seconds=3), timedelta(seconds=20)
_UPLOAD_TIMEOUT = timedelta(hours=1)  # a blob of 2 GiB in one request: only those can be conditional
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
# Where the operator names a server of their own; without TLS only if its address says so.
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_PROBES = "probes"
_HINT = "see that --bundles names it, and that its credentials are in the environment"
_NEEDED = (
    "publishing needs conditional writes; use S3 or a server that has them, such as VersityGW, Google Cloud Storage or"
    " Azure"
)


@dataclass(frozen=True)
class Entry:
    """An object in a listing. ``tag``: changes with its contents."""

    key: str
    tag: str
    size: int


@dataclass(frozen=True)
class Stored:
    """The contents of an object, with its tag."""

    data: bytes
    tag: str


class ObjectError(StorageError):
    """One object is missing or not what it must be; the store itself works."""


class ObjectStore:
    """The objects below one URL. ``store``: of obstore; ``uploads``: the same for large bodies.

    Raises:
        StorageError: the store is away or refuses. All methods raise it.
    """

    def __init__(self, store: Any, name: str, *, uploads: Any = None) -> None:
        self._store, self._uploads, self.name = store, store if uploads is None else uploads, name

    @classmethod
    def at(cls, url: str) -> ObjectStore:
        """The store at ``s3://BUCKET/PREFIX``, ``gs://…`` or ``az://ACCOUNT/CONTAINER/…``.

        Raises:
            UsageError: another URL, or one with credentials in it, which is not repeated.
            MissingExtraError: obstore is not installed.
        """
        _check(url)
        require("obstore", extra="fleet")
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        def opened(timeout: timedelta) -> Any:
            plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
            options: Any = {"timeout": timeout, "connect_timeout": _CONNECT_TIMEOUT, "allow_http": plain}
            return from_url(url, client_options=options, retry_config=_RETRY)

        try:
            return cls(opened(_TIMEOUT), url, uploads=opened(_UPLOAD_TIMEOUT))
        except (BaseError, ValueError) as error:
            raise UsageError(f"--bundles cannot be used: {_first_line(error)}", hint=_HINT) from error

    def create(self, key: str, data: bytes | Path) -> bool:
        """Write an object unless there is one; False if there is."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._errors():
            try:
                obstore.put(self._uploads, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def swap(self, key: str, data: bytes, *, tag: str | None) -> bool:
        """Replace the object that has this tag (None: that is not there yet); False if it changed meanwhile."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if tag is None:
            return self.create(key, data)
        with self._errors():
            try:
                obstore.put(self._store, key, data, mode={"e_tag": tag}, use_multipart=False)
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return False
        return True

    def read(self, key: str, *, max_bytes: int) -> Stored | None:
        """An object; None if there is none (StorageError if it is larger)."""
        import obstore

        with self._errors():
            try:
                found = obstore.get(self._store, key)
            except FileNotFoundError:
                return None
            if found.meta["size"] > max_bytes:
                raise ObjectError(f"{key} in {self.name} has more than {max_bytes} bytes")
            return Stored(bytes(found.bytes()), found.meta["e_tag"] or "")

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop`` of an object that is there."""
        import obstore

        with self._errors():
            try:
                return bytes(obstore.get_range(self._store, key, start=start, end=stop))
            except FileNotFoundError as error:
                raise ObjectError(f"{key} is missing from {self.name}", hint="publish the bundle again") from error

    def size(self, key: str) -> int | None:
        """Bytes of an object; None if there is none."""
        import obstore

        with self._errors():
            try:
                return int(obstore.head(self._store, key)["size"])
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[Entry]:
        """The objects in a folder and below it."""
        import obstore

        with self._errors():
            for part in obstore.list(self._store, prefix):
                for found in part:
                    yield Entry(found["path"], found["e_tag"] or "", found["size"])

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if there is none."""
        import obstore

        with self._errors(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def signed_url(self, key: str, valid_s: float) -> str | None:
        """An address to read an object without credentials; None where the store has none."""
        import obstore

        try:
            with self._errors():
                return str(obstore.sign(self._store, "GET", key, timedelta(seconds=valid_s)))
        except (StorageError, TypeError, ValueError, NotImplementedError):
            return None

    def probe(self) -> None:
        """Raise StorageError unless conditional writes are honoured: some servers accept and ignore them."""
        key = f"{_PROBES}/{secrets.token_hex(8)}"
        try:
            if not self.create(key, b"1"):
                raise StorageError(f"{self.name} refuses new objects", hint=_NEEDED)
            first = self.read(key, max_bytes=1)
            if first is None or self.create(key, b"2"):
                raise StorageError(f"{self.name} overwrites an object that must not be there", hint=_NEEDED)
            if not self.swap(key, b"3", tag=first.tag) or self.swap(key, b"4", tag=first.tag):
                raise StorageError(f"{self.name} does not compare before it replaces an object", hint=_NEEDED)
            last = self.read(key, max_bytes=1)
            if last is None or last.data != b"3":
                raise StorageError(f"{self.name} does not return what was written last", hint=_NEEDED)
        except NotImplementedError as error:
            raise StorageError(f"{self.name} has no conditional writes", hint=_NEEDED) from error
        finally:
            with contextlib.suppress(StorageError):
                self.delete(key)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise StorageError(f"cannot use {self.name}: {_first_line(error)}", hint=_HINT) from error


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "--bundles is no URL of an object store",
            hint="write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX; credentials come from"
            " the environment",
        )


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["it failed"])[0]

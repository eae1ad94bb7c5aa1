"""Blobs of an object store on this machine's disk: verified before they are used, the least used ones go first."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

from device_sdk.errors import BlobError
from device_sdk.files.atomic import storage_errors

_UNFINISHED = ".part"


class BlobCache:
    """The folder ``folder`` with up to ``limit_bytes`` of blobs, and the one that was asked for last. Thread-safe."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self.folder, self._limit_bytes = folder, limit_bytes
        self._lock = threading.Lock()  # guards evicting, and what follows
        self._fetching: dict[str, threading.Lock] = {}
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in folder.glob(f"*{_UNFINISHED}"):
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path | None:
        """The file of a blob that is here; it counts as used now."""
        path = self.folder / name
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def turn(self, name: str) -> threading.Lock:
        """A lock to hold while a blob is fetched, so that it is fetched once."""
        with self._lock:
            return self._fetching.setdefault(name, threading.Lock())

    def add(self, name: str, parts: Iterable[bytes]) -> Path:
        """Store a blob and evict others.

        Raises:
            BlobError: its digest is another. StorageError.
        """
        path = self.folder / name
        unfinished = path.with_name(f"{name}.{secrets.token_hex(8)}{_UNFINISHED}")
        try:
            with storage_errors(path):
                digest = hashlib.sha256()
                with unfinished.open("xb") as file:
                    for part in parts:
                        digest.update(part)
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                if digest.hexdigest() != name:
                    raise BlobError(f"blob {name[:12]}… does not match its digest", hint="publish the bundle again")
                os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        self._evict(keep=name)
        return path

    def _evict(self, *, keep: str) -> None:
        with self._lock:
            self._fetching.pop(keep, None)
            found = []
            for path in self.folder.iterdir():
                try:
                    status = path.stat()
                except OSError:
                    continue
                found.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if total <= self._limit_bytes:
                    break
                if path.name != keep and path.suffix != _UNFINISHED:
                    path.unlink(missing_ok=True)
                    total -= size

"""Deletes from a store what no bundle needs: old bundles, blobs, and what interrupted writers left."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.delivery.blob_writer import orphans
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import BundleError
from device_sdk.files.atomic import remove_temporaries
from device_sdk.files.locks import try_exclusive
from device_sdk.signing.key_list import KEYS

_DIGEST = re.compile(r"[0-9a-f]{64}")  # what a store names its blobs and bundles by; anything else is not its own

_log = logging.getLogger(__name__)


def collect(store: BundleStore) -> int:
    """Delete what no bundle needs, unless another process fetches or tests one now; returns the bytes of its blobs.

    A bundle stays that a record refers to (current, previous, mark), and one that a process has open (a lease). If the
    manifest of one of these cannot be read, all blobs stay. Errors of the disk are ignored: the next call tries again.
    """
    if not store.bundles.is_dir():
        return 0
    with try_exclusive(store.folder / "installing") as alone:
        if not alone:
            return 0
        for path in list(orphans(store.partial)):
            _delete(path)
        remove_temporaries(store.folder / KEYS)
        kept = [folder for name in store.names() for folder in _kept_bundles(store, name)]
        return _collect_blobs(store, kept)


def _kept_bundles(store: BundleStore, name: str) -> list[Path]:
    """The folders that stay; deletes the others."""
    parent, needed = store.bundles / name, store.digests_of(name)
    remove_temporaries(parent)
    kept = []
    for folder in [path for path in parent.iterdir() if path.is_dir() and _DIGEST.fullmatch(path.name)]:
        with try_exclusive(folder) as unused:
            if folder.name in needed or not unused:
                remove_temporaries(folder)
                kept.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return kept


def _collect_blobs(store: BundleStore, bundles: list[Path]) -> int:
    needed: set[str] = set()
    for folder in bundles:
        try:
            needed.update(decode_manifest((folder / MANIFEST).read_bytes()).blobs())
        except (OSError, BundleError) as error:
            _log.warning("blobs stay, since %s cannot be read: %s", folder / MANIFEST, error)
            return 0
    freed_bytes = 0
    with contextlib.suppress(OSError):
        for path in list(store.blobs.iterdir()):
            if path.name not in needed and _DIGEST.fullmatch(path.name):
                freed_bytes += _delete(path)
    return freed_bytes


def _delete(path: Path) -> int:
    """Delete a file; returns its size, or 0 if that failed."""
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:
        return 0
    return size

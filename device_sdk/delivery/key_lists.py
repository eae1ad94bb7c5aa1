"""The key lists that a device has fetched: ``keys/<sha256 of the list before it>.json`` in its store, and ``.copy``.

A list is found by the one before it, so an application that pins a newer list goes on with the same files. It counts
only if it is verified from the pinned one on, each time that it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from device_sdk.delivery.store import BundleStore
from device_sdk.errors import BundleError, RefusedError
from device_sdk.files.atomic import write_if_changed
from device_sdk.signing.release import KEYS, KEYS_MAX_BYTES, list_name
from device_sdk.signing.trust import Trust, TrustedKeys

LISTS_AT_ONCE = 64  # fetched in one delivery; the next one goes on
LISTS_MAX = 1024  # behind the pinned one

_log = logging.getLogger(__name__)


def with_stored_lists(trust: Trust | None, store: BundleStore) -> Trust | None:
    """``trust`` with the key lists of ``store`` that follow its own; anything but key lists as it is."""
    return stored_lists(trust, store) if isinstance(trust, TrustedKeys) else trust


def stored_lists(trusted: TrustedKeys, store: BundleStore) -> TrustedKeys:
    """``trusted`` with the lists that follow it. A list whose copies are damaged ends them: it is fetched again."""
    for _ in range(LISTS_MAX):
        longer = _stored_next(trusted, store)
        if longer is None:
            break
        trusted = longer
    return trusted


def _stored_next(trusted: TrustedKeys, store: BundleStore) -> TrustedKeys | None:
    for path in _paths(store, trusted):
        try:
            with path.open("rb") as file:
                return trusted.followed_by(file.read(KEYS_MAX_BYTES + 1))
        except FileNotFoundError:
            continue
        except (OSError, BundleError) as error:
            _log.warning("%s is damaged: %s", path, error)
    return None


def fetch_lists(trusted: TrustedKeys, store: BundleStore, fetch: Callable[[str, int], bytes]) -> TrustedKeys:
    """``trusted`` with the lists that ``store`` and the server have; each one is stored once it is verified.

    ``fetch``: name and most bytes to contents; 404 ends the lists.

    Raises:
        SignatureError, UnsupportedFormatError: a list is refused. TransferError, StorageError.
    """
    trusted = stored_lists(trusted, store)
    for _ in range(LISTS_AT_ONCE):
        try:
            data = fetch(list_name(trusted.newest.number + 1), KEYS_MAX_BYTES)
        except RefusedError as error:
            if error.status == 404:
                break
            raise
        longer = trusted.followed_by(data)
        for path in _paths(store, trusted):
            write_if_changed(path, data)
        trusted = longer
    return trusted


def _paths(store: BundleStore, trusted: TrustedKeys) -> list[Path]:
    return [store.folder / KEYS / f"{trusted.digest}.{ending}" for ending in ("json", "copy")]

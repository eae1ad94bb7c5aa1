"""The mark of time of each bundle in a store: ``bundles/<name>/time`` and ``time.copy``."""

from __future__ import annotations

import logging
from pathlib import Path

from device_sdk.delivery.marks import decode_time_mark, encode_mark
from device_sdk.delivery.store import BundleStore
from device_sdk.files.atomic import write_if_changed
from device_sdk.signing.release import KeyList, Release, TimeMark, raised

COPIES = ("time.copy", "time")

_log = logging.getLogger(__name__)


def time_mark(store: BundleStore, name: str) -> TimeMark:
    """The later of the two copies that can be read."""
    marks = [TimeMark()]
    for path in _paths(store, name):
        try:
            marks.append(decode_time_mark(path.read_bytes()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            _log.warning("%s is damaged: %s", path, error)
    return max(marks, key=lambda mark: (mark.keys, mark.signed_at_s))


def raise_time_mark(store: BundleStore, release: Release, newest: KeyList, *, allow_rollback: bool = False) -> TimeMark:
    """Remember when ``release``, which is verified, was signed; returns the mark.

    Raises:
        RollbackError: this device has had a newer key list than ``newest``; not if ``allow_rollback``.
        StorageError: it could not be written.
    """
    with store.writing():
        mark = raised(time_mark(store, release.name), release, newest, allow_rollback=allow_rollback)
        data = encode_mark(mark)
        for path in _paths(store, release.name):
            write_if_changed(path, data)
    return mark


def _paths(store: BundleStore, name: str) -> list[Path]:
    return [store.folder_of(name) / copy for copy in COPIES]

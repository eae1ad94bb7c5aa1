"""The port to where bundles are kept: a folder, or an object store that several servers share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from device_sdk.errors import UsageError
from server.state.catalogue import Listing, ServedBundle
from server.state.folder_bundles import FolderBundles
from server.state.object_bundles import ObjectBundles
from server.state.object_store import ObjectStore


class BundleStore(Protocol):
    """Published bundles. Thread-safe. All methods raise StorageError if the store is away.

    ``name``: for people; ``takes_bundles``: False if nothing can be published.
    """

    @property
    def name(self) -> str: ...
    @property
    def takes_bundles(self) -> bool: ...
    def check(self) -> None:
        """Raise StorageError unless the store answers."""

    def listing(self) -> Listing:
        """The bundles that are served now."""

    def find(self, name: str) -> ServedBundle:
        """The bundle of this name in its highest version (NotFoundError if there is none)."""

    def find_blob(self, name: str, blob: str) -> Path:
        """A file with a blob of any version of the bundle ``name`` (NotFoundError if there is none)."""

    def signed_url(self, name: str, blob: str) -> str | None:
        """An address of a blob in the store that needs no token, for a while; None: ask the server."""

    def find_key_list(self, name: str, number: int) -> bytes:
        """A key list for the bundle ``name`` (NotFoundError if there is none)."""

    def key_lists(self) -> Path:
        """A folder with the key lists of all bundles in its subfolder ``keys``."""

    def next_version(self, name: str) -> int:
        """A version of a bundle that is not taken."""

    def publish(self, out: Path, *, name: str, version: int) -> None:
        """Serve the bundle in ``out``, which may be moved (PublishError if another has that version)."""

    def remove(self, name: str, version: int) -> None:
        """Stop serving a version and delete it (NotFoundError if there is none)."""

    def close(self) -> None:
        """Stop what runs in the background. Idempotent."""


def open_bundles(location: Path | str, *, cache: Path, cache_bytes: int, signed_urls: bool = False) -> BundleStore:
    """The store at a folder or a URL. ``cache``: this server's folder for what it reads of an object store.

    Raises:
        UsageError: not the URL of an object store. StorageError: the store is away, or ignores conditional writes.
    """
    if isinstance(location, Path):
        if signed_urls:
            raise UsageError("a folder has no signed URLs", hint="leave out --signed-urls, or give --bundles a URL")
        return FolderBundles(location)
    store = ObjectStore.at(location)
    store.probe()
    return ObjectBundles(store, cache, cache_bytes=cache_bytes, signed_urls=signed_urls)

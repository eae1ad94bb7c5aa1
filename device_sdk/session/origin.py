"""The server that a bundle came from, and what it is used for once the bundle is open."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from device_sdk.bundles.bundle import Bundle
from device_sdk.progress import Progress


@dataclass(frozen=True)
class Origin:
    """The server that a bundle came from. ``store_folder``: where what it sends is kept."""

    url: str
    store_folder: Path
    token: str | None = field(default=None, repr=False)

    @contextlib.contextmanager
    def fetched(self, bundle: Bundle, exits: Collection[str], progress: Progress) -> Iterator[tuple[Bundle, int]]:
        """``bundle`` with ``exits``, whose missing blobs were fetched, and the bytes that came; see ``fetch_exits``.

        Until the end of the context no process deletes what was fetched.
        """
        from device_sdk.delivery.exits import fetch_exits
        from device_sdk.delivery.store import BundleStore
        from device_sdk.transports import make_transport

        store = BundleStore(self.store_folder)
        with store.installing(), contextlib.closing(make_transport(self.url, token=self.token)) as transport:
            tally = fetch_exits(self.url, bundle, exits, store, transport, progress=progress)
            fetched = bundle.with_exits(exits)
            lease = store.lease(fetched.manifest.name, fetched.digest)
            weakref.finalize(fetched, lease.close)  # until then no other process deletes its blobs
            yield fetched, tally.size_bytes

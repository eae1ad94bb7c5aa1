"""The version of a bundle that a request works with: the sender's own, or that of devices which do not ask."""

from __future__ import annotations

import time
from collections.abc import Callable

from device_sdk.errors import StorageError
from server.rollouts.assigning import Assignments
from server.state.bundle_store import BundleStore
from server.state.catalogue import Listing, ServedBundle

_FRESH_S = 1.0
_MAX_KNOWN = 4096


class DeviceVersions:
    """Versions by rollouts that are at most a second old, so that answers to hard samples wait for no database.

    While the database is away, what is known stands; of what is not known the highest version is taken. Thread-safe.
    """

    def __init__(
        self, assignments: Assignments, bundles: BundleStore, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._assignments, self._bundles, self._clock = assignments, bundles, clock
        self._known: dict[tuple[str, str | None, str | None], tuple[int, float]] = {}  # with the time of the answer

    def find(self, name: str, device: str | None, tags: str | None = None) -> ServedBundle:
        """The version for a device, None for one that does not say which it is. Nothing is remembered of it.

        Raises:
            NotFoundError: there is no such bundle. ConflictError: its version is not served any more.
        """
        listing = self._bundles.listing()
        served = [one.version for one in listing.versions(name)]
        if len(served) == 1:
            return listing.version(name, served[0])
        return self._chosen(listing, served, (name, device, tags))

    def _chosen(self, listing: Listing, served: list[int], key: tuple[str, str | None, str | None]) -> ServedBundle:
        (name, device, tags), now = key, self._clock()
        known = self._known.get(key)
        if known is None or now - known[1] >= _FRESH_S or known[0] not in served:
            try:
                if device is None:
                    version = self._assignments.without_asking(name, served)
                else:
                    version = self._assignments.assign(name, device, tags, records=False).version
            except StorageError:
                version = max(served) if known is None or known[0] not in served else known[0]
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = known = version, now
        return listing.version(name, known[0])

"""The signed rollback to a version that a server assigned: fetched, and verified for this device."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.delivery.key_lists import with_stored_lists
from device_sdk.delivery.store import BundleStore
from device_sdk.delivery.time_marks import time_mark
from device_sdk.errors import RefusedError, RollbackError
from device_sdk.signing.rollback import (
    ROLLBACK,
    ROLLBACK_MAX_BYTES,
    Rollback,
    require_permitted,
    require_valid,
    verify_rollback,
)
from device_sdk.signing.trust import Trust


def require_rollback(
    store: BundleStore,
    fetch: Callable[[str, int], bytes],
    trust: Trust | None,
    *,
    name: str,
    version: int,
    digest: str,
    had: int,
    clock_s: float,
) -> Rollback:
    """The rollback that permits ``version`` to a device that has had the version ``had``.

    ``fetch``: name and most bytes to contents. ``trust``: its newest list in the store counts; None: unsigned will do.

    Raises:
        RollbackError: there is none, or it is for something else. SignatureError, ExpiredError, TransferError.
    """
    try:
        data = fetch(ROLLBACK, ROLLBACK_MAX_BYTES)
    except RefusedError as error:
        if error.status != 404:
            raise
        raise RollbackError(
            f"the server assigns version {version} of {name} without a signed rollback; this device has had {had}",
            hint="who publishes the bundle makes it: pathweave sign rollback",
        ) from error
    trusted = with_stored_lists(trust, store)
    rollback = verify_rollback(data, None if trusted is None else trusted.signers())
    require_permitted(rollback, name=name, version=version, digest=digest, had=had)
    require_valid(rollback, clock_s=clock_s, proven_s=time_mark(store, name).signed_at_s)
    return rollback

"""A device asks which version is its own: answered from the database, on any replica."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa

from device_sdk.delivery.assignment import Assignment, decode_tags
from server.errors import ConflictError, OverloadedError
from server.rollouts import store
from server.rollouts.decisions import Rollout, Step, assign, hold_is_over, next_step
from server.rollouts.signals import Member, counted, difference
from server.state.bundle_store import BundleStore
from server.state.database import Database
from server.state.log_store import lock_device

_TRIES = 5  # a rollout that changes more often while a device asks is asked for again
_LOOK_AGAIN = timedelta(seconds=1)  # whether a stage is over; not at every request


class Assignments:
    """Assigns versions. Thread-safe. A stage that is over ends when a device asks: no thread waits for it."""

    def __init__(self, database: Database, bundles: BundleStore, now: Callable[[], datetime]) -> None:
        self._database, self._bundles, self._now = database, bundles, now
        self._looked: dict[int, datetime] = {}

    def assign(self, bundle: str, device: str, tags: str | None, *, records: bool) -> Assignment:
        """The version of a device. ``tags``: its header, None for those of before.

        ``records``: the device is surely the one that asks, so that it is remembered what it got.

        Raises:
            NotFoundError: there is no such bundle. ConflictError: its version is not served any more. StorageError.
        """
        served = [one.version for one in self._bundles.listing().versions(bundle)]
        for _ in range(_TRIES):
            found = self._try(bundle, device, tags, served, records=records)
            if found is not None:
                if found.version not in served:
                    raise _not_served(bundle, found.version)
                return found
        raise OverloadedError("the rollout changes all the time", hint="try again")

    def without_asking(self, bundle: str, served: Collection[int]) -> int:
        """The version at the bundle's own address: the highest; from its first rollout on, the one that replaced all
        others last, so that clients that do not ask are never in a stage.

        Raises:
            ConflictError: it is not served any more. StorageError.
        """
        with self._database.reading() as connection:
            rollout = store.latest(connection, bundle)
        if rollout is None:
            return max(served)
        version = rollout.version if rollout.state == "done" else rollout.baseline
        if version not in served:
            raise _not_served(bundle, version)
        return version

    def _try(
        self, bundle: str, device: str, tags: str | None, served: Collection[int], *, records: bool
    ) -> Assignment | None:
        """One attempt; None if the rollout changed during it."""
        with self._database.reading() as connection:
            rollout = store.latest(connection, bundle)
            known = store.known(connection, bundle, device)
            member = None if rollout is None else store.member(connection, rollout.number, device)
            step = None if rollout is None else self._due(connection, rollout, served)
        if rollout is not None and step is not None:
            with self._database.writing() as connection:
                store.take(connection, rollout, step, self._now())
            return None
        text = tags if tags is not None else "" if known is None else known.tags
        found = Assignment(max(served)) if rollout is None else _assigned(rollout, member, device, text, known)
        joins = found.stage is not None and (member is None or member.stage is None)
        seen = store.Known(text, seen=self._now().date().isoformat())
        if records and (known is None or (known.tags, known.seen) != (seen.tags, seen.seen) or joins):
            with self._database.writing() as connection:
                lock_device(connection, device)
                if joins and rollout is not None:
                    if not store.held(connection, rollout):
                        return None
                    join(connection, rollout, device, version=found.version, stage=found.stage, tags=decode_tags(text))
                now_known = store.known(connection, bundle, device) or store.Known()
                changed = msgspec.structs.replace(now_known, tags=seen.tags, seen=seen.seen)
                store.put_known(connection, bundle, device, changed)
        return found

    def _due(self, connection: sa.Connection, rollout: Rollout, served: Collection[int]) -> Step | None:
        now = self._now()
        if rollout.state == "planned":
            return Step("running", 0) if rollout.version in served else None
        waits = rollout.state == "running" and not hold_is_over(rollout, now)
        if rollout.state not in ("running", "reversing") or waits:
            return None
        if now - self._looked.get(rollout.number, now - _LOOK_AGAIN) < _LOOK_AGAIN:
            return None
        self._looked[rollout.number] = now
        counts, on_new = store.counts(connection, rollout.number), store.devices_on(connection, rollout)
        return next_step(rollout, counts, now, on_new=on_new)


def _assigned(rollout: Rollout, member: Member | None, device: str, tags: str, known: store.Known | None) -> Assignment:
    return assign(rollout, member, device, decode_tags(tags), has=None if known is None else known.version)


def _not_served(bundle: str, version: int) -> ConflictError:
    return ConflictError(
        f"version {version} of {bundle} is assigned and not served",
        hint="publish it again, or start a rollout of another version",
    )


def join(
    connection: sa.Connection, rollout: Rollout, device: str, *, version: int, stage: int | None, tags: dict[str, str]
) -> Member:
    """The part of a device that gets ``version`` from now on, stored. The caller's transaction holds the device."""
    before = store.member(connection, rollout.number, device)
    known = store.known(connection, rollout.bundle, device)
    measured = {} if known is None or known.version == version else known.measured
    installed = None if known is None else known.version
    joined = Member(version, stage, tags, installed=installed, before=measured)
    store.put_member(connection, rollout.number, device, joined)
    store.add_counts(connection, rollout.number, difference(counted(before), counted(joined)))
    return joined

"""New log lines as reports about the versions of a rollout, counted in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa

from device_sdk.delivery.assignment import decode_tags
from device_sdk.logs.adaptation_log import Refused
from server.rollouts import store
from server.rollouts.assigning import join
from server.rollouts.cohorts import stage_of
from server.rollouts.decisions import Rollout, next_step
from server.rollouts.signals import Member, counted, difference, values_of
from server.state.bundle_store import BundleStore
from server.state.catalogue import ServedBundle
from server.state.log_store import CheckedLine

_SKEW = timedelta(minutes=5)  # of a device's clock
_OBSERVED = ("running", "paused", "reversing")


@dataclass(frozen=True)
class _Said:
    """A line of a known version. ``refused``: the version that it says was refused."""

    version: int
    line: CheckedLine
    refused: int | None


class Observations:
    """Reads the lines of devices as they arrive; ``observe`` is an observer of the store of log lines."""

    def __init__(self, bundles: BundleStore, now: Callable[[], datetime]) -> None:
        self._bundles, self._now = bundles, now

    def observe(self, connection: sa.Connection, device: str, lines: Sequence[CheckedLine]) -> None:
        """Count what the lines say, and halt the rollouts that they condemn. The transaction holds the device."""
        for bundle, said in self._by_bundle(lines).items():
            known = store.known(connection, bundle, device) or store.Known()
            rollout = store.latest(connection, bundle)
            if rollout is not None and rollout.state in _OBSERVED:
                self._count(connection, rollout, device, said, decode_tags(known.tags))
            seen = _seen(known, said, self._now().date().isoformat())
            if seen != known:
                store.put_known(connection, bundle, device, seen)

    def _by_bundle(self, lines: Iterable[CheckedLine]) -> dict[str, list[_Said]]:
        served = {one.bundle.digest: one for all_ in self._bundles.listing().bundles.values() for one in all_}
        found: dict[str, list[_Said]] = {}
        for line in lines:
            here = served.get(line.line.bundle)
            if here is not None:
                said = _Said(here.version, line, _refused(line.line.event, here.name, served))
                found.setdefault(here.name, []).append(said)
        return found

    def _count(
        self, connection: sa.Connection, rollout: Rollout, device: str, said: Iterable[_Said], tags: dict[str, str]
    ) -> None:
        earliest = (rollout.started - _SKEW).isoformat(timespec="milliseconds")
        before = member = store.member(connection, rollout.number, device)
        for one in said:
            if one.line.time < earliest:
                continue
            about = one.version if one.refused is None else one.refused
            if about != rollout.baseline and about in (rollout.version, rollout.control):
                if member is None or member.stage is None:  # it got the version before it was known by name
                    stage = stage_of(rollout.plan, rollout.salt, device, tags)
                    stage = rollout.stage if stage is None else min(stage, rollout.stage)
                    before = member = join(connection, rollout, device, version=about, stage=stage, tags=tags)
            elif member is None:
                member = Member(rollout.baseline, None, tags)
            member = _after(member, one)
        if member is None or member == before:
            return
        store.put_member(connection, rollout.number, device, member)
        store.add_counts(connection, rollout.number, difference(counted(before), counted(member)))
        self._step(connection, rollout)

    def _step(self, connection: sa.Connection, rollout: Rollout) -> None:
        now = self._now()
        on_new = store.devices_on(connection, rollout) if rollout.state == "reversing" else 1
        step = next_step(rollout, store.counts(connection, rollout.number), now, on_new=on_new)
        if step is not None:  # if the rollout has changed meanwhile, the next line or request decides
            store.take(connection, rollout, step, now)


def _after(member: Member, said: _Said) -> Member:
    """The reports of a device after one more line."""
    if said.refused is not None:
        reason = getattr(said.line.line.event, "reason", "")
        return member.with_refusal(reason) if said.refused == member.version else member
    if said.version == member.version:
        member = member.with_event(said.line.line.event)
    return msgspec.structs.replace(member, installed=said.version)


def _refused(event: object, name: str, served: dict[str, ServedBundle]) -> int | None:
    """The version that an event says was refused; None if it is no such event, or names other contents."""
    if not isinstance(event, Refused):
        return None
    named = None if event.digest is None else served.get(event.digest)
    is_ours = event.digest is None or (named is not None and (named.name, named.version) == (name, event.version))
    return event.version if is_ours else None


def _seen(known: store.Known, said: Sequence[_Said], today: str) -> store.Known:
    version, measured = known.version, dict(known.measured)
    for one in said:
        if one.version != version:
            version, measured = one.version, {}
        measured.update(values_of(one.line.line.event))
    return store.Known(known.tags, version, measured, today)

"""Rollouts in the database: changed by comparing revisions, so that of two replicas or operators one decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from device_sdk.files.atomic import decode_json
from server.errors import ConflictError, NotFoundError
from server.rollouts.decisions import ACTIVE, Rollout, State, Step
from server.rollouts.evidence import Counts
from server.rollouts.plan import Plan
from server.rollouts.signals import Key, Member
from server.state.database import insert
from server.state.tables import BUNDLE_DEVICES, ROLLOUT_COUNTS, ROLLOUT_DEVICES, ROLLOUTS


class Known(msgspec.Struct, frozen=True):
    """A device of a bundle's fleet. ``tags``: as in their header; ``measured``: its latest values on ``version``."""

    tags: str = ""
    version: int | None = None
    measured: dict[str, float] = {}
    seen: str = ""


def start(
    connection: sa.Connection,
    bundle: str,
    *,
    version: int,
    baseline: int,
    plan: Plan,
    salt: str,
    state: State,
    now: datetime,
    by: str,
) -> Rollout:
    """Begin a rollout (ConflictError if another of that bundle is not over, or was begun at the same time)."""
    number = 1 + connection.execute(sa.select(sa.func.coalesce(sa.func.max(ROLLOUTS.c.number), 0))).scalar_one()
    row = {
        "number": number,
        "bundle": bundle,
        "active": bundle,
        "version": version,
        "baseline": baseline,
        "plan": msgspec.json.encode(plan),
        "salt": salt,
        "state": state,
        "stage": 0,
        "since": now.isoformat(),
        "started": now.isoformat(),
        "started_by": by,
        "why": "",
        "revision": 0,
    }
    added = insert(connection, ROLLOUTS).on_conflict_do_nothing().returning(ROLLOUTS.c.number)
    if connection.execute(added, row).first() is None:
        raise ConflictError(
            f"another rollout of {bundle} is not over, or was started at the same time",
            hint="pathweave admin rollouts list shows it; reverse it, or wait until it is done",
        )
    return find(connection, number)


def find(connection: sa.Connection, number: int) -> Rollout:
    """A rollout (NotFoundError if there is none)."""
    row = connection.execute(sa.select(*_COLUMNS).where(ROLLOUTS.c.number == number)).first()
    if row is None:
        raise NotFoundError(f"there is no rollout {number}", hint="GET /v1/rollouts lists them")
    return _rollout(row)


def all_of(connection: sa.Connection, *, limit: int) -> list[Rollout]:
    """The latest rollouts, the newest first."""
    rows = connection.execute(sa.select(*_COLUMNS).order_by(ROLLOUTS.c.number.desc()).limit(limit))
    return [_rollout(row) for row in rows]


def latest(connection: sa.Connection, bundle: str) -> Rollout | None:
    """The rollout that decides about a bundle: the one that was started last."""
    query = sa.select(*_COLUMNS).where(ROLLOUTS.c.bundle == bundle).order_by(ROLLOUTS.c.number.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _rollout(row)


def take(connection: sa.Connection, rollout: Rollout, step: Step, now: datetime) -> bool:
    """Change a rollout; False, and nothing changes, if it has changed since it was read."""
    begins = step.state == "running" and (step.stage, "running") != (rollout.stage, rollout.state)
    changed = sa.update(ROLLOUTS).where(ROLLOUTS.c.number == rollout.number, ROLLOUTS.c.revision == rollout.revision)
    values = {
        "state": step.state,
        "stage": step.stage,
        "why": step.why,
        "active": rollout.bundle if step.state in ACTIVE else None,
        "since": (now if begins else rollout.since).isoformat(),
        "revision": rollout.revision + 1,
    }
    return bool(connection.execute(changed.values(values)).rowcount)


def held(connection: sa.Connection, rollout: Rollout) -> bool:
    """Keep a rollout from changing until the transaction ends; False if it has changed since it was read."""
    query = sa.select(ROLLOUTS.c.revision).where(ROLLOUTS.c.number == rollout.number).with_for_update(read=True)
    return bool(connection.execute(query).scalar() == rollout.revision)


def member(connection: sa.Connection, number: int, device: str) -> Member | None:
    """The reports of a device in a rollout; None if it has no part in it."""
    rows = ROLLOUT_DEVICES.c
    found = connection.execute(sa.select(rows.member).where(rows.rollout == number, rows.device == device)).scalar()
    return None if found is None else decode_json(found, Member)


def put_member(connection: sa.Connection, number: int, device: str, one: Member) -> None:
    """Store a device's part in a rollout."""
    values = {
        "version": one.version,
        "stage": one.stage,
        "installed": one.installed,
        "member": msgspec.json.encode(one),
    }
    added = insert(connection, ROLLOUT_DEVICES).values(rollout=number, device=device, **values)
    connection.execute(added.on_conflict_do_update(index_elements=["rollout", "device"], set_=values))


def devices_on(connection: sa.Connection, rollout: Rollout) -> int:
    """Devices that said they run a version of the rollout other than the one it replaces."""
    rows = ROLLOUT_DEVICES.c
    query = sa.select(sa.func.count()).where(
        rows.rollout == rollout.number, rows.stage.is_not(None), rows.installed.in_(_new(rollout))
    )
    return int(connection.execute(query).scalar_one())


def devices_by_stage(connection: sa.Connection, number: int) -> list[tuple[int, int, int, int]]:
    """Stage, version, devices that got it, and of them those that said they run it."""
    rows = ROLLOUT_DEVICES.c
    runs = sa.func.sum(sa.case((rows.installed == rows.version, 1), else_=0))
    query = sa.select(rows.stage, rows.version, sa.func.count(), runs).where(
        rows.rollout == number, rows.stage.is_not(None)
    )
    found = connection.execute(query.group_by(rows.stage, rows.version).order_by(rows.stage, rows.version))
    return [(stage, version, int(devices), int(running)) for stage, version, devices, running in found]


def counts(connection: sa.Connection, number: int) -> dict[Key, Counts]:
    """All counts of a rollout."""
    rows = ROLLOUT_COUNTS.c
    query = sa.select(rows.version, rows.tag, rows.signal, rows.devices, rows.events, rows.total, rows.squares).where(
        rows.rollout == number
    )
    return {
        (version, tag, signal): Counts(int(devices), int(events), total, squares)
        for version, tag, signal, devices, events, total, squares in connection.execute(query)
    }


def add_counts(connection: sa.Connection, number: int, changes: Mapping[Key, Counts]) -> None:
    """Add to the counts of a rollout. Rows are locked in the order of keys, so replicas do not wait for each other."""
    if not changes:
        return
    rows = [
        {
            "rollout": number,
            "version": version,
            "tag": tag,
            "signal": signal,
            "devices": one.devices,
            "events": one.events,
            "total": one.total,
            "squares": one.squares,
        }
        for (version, tag, signal), one in sorted(changes.items())
    ]
    added = insert(connection, ROLLOUT_COUNTS).values(rows)
    summed = {name: ROLLOUT_COUNTS.c[name] + added.excluded[name] for name in ("devices", "events", "total", "squares")}
    connection.execute(added.on_conflict_do_update(index_elements=["rollout", "version", "tag", "signal"], set_=summed))


def known(connection: sa.Connection, bundle: str, device: str) -> Known | None:
    """A device of a bundle's fleet; None if it is not known."""
    rows = BUNDLE_DEVICES.c
    query = sa.select(rows.tags, rows.version, rows.measured, rows.seen)
    row = connection.execute(query.where(rows.bundle == bundle, rows.device == device)).first()
    return None if row is None else _known(row)


def put_known(connection: sa.Connection, bundle: str, device: str, one: Known) -> None:
    """Store what is known of a device."""
    values = {
        "tags": one.tags,
        "version": one.version,
        "measured": msgspec.json.encode(one.measured),
        "seen": one.seen,
    }
    added = insert(connection, BUNDLE_DEVICES).values(bundle=bundle, device=device, **values)
    connection.execute(added.on_conflict_do_update(index_elements=["bundle", "device"], set_=values))


def fleet_size(connection: sa.Connection, bundle: str) -> int:
    """The number of devices that asked for a bundle, or sent lines of it."""
    return int(connection.execute(sa.select(sa.func.count()).where(BUNDLE_DEVICES.c.bundle == bundle)).scalar_one())


def devices_above(connection: sa.Connection, bundle: str, version: int, *, but: int) -> int:
    """Devices of a bundle's fleet whose version is higher than one, and is not ``but``."""
    rows = BUNDLE_DEVICES.c
    query = sa.select(sa.func.count()).where(rows.bundle == bundle, rows.version > version, rows.version != but)
    return int(connection.execute(query).scalar_one())


def fleet(connection: sa.Connection, bundle: str, *, limit: int) -> list[tuple[str, Known]]:
    """Devices of a bundle's fleet with tags and version, without their values, in the order of their names."""
    rows = BUNDLE_DEVICES.c
    query = sa.select(rows.device, rows.tags, rows.version)
    found = connection.execute(query.where(rows.bundle == bundle).order_by(rows.device).limit(limit))
    return [(device, Known(tags, version)) for device, tags, version in found]


def versions_in_the_field(connection: sa.Connection) -> dict[tuple[str, int], int]:
    """Devices by bundle and version, as their log lines say."""
    rows = BUNDLE_DEVICES.c
    query = sa.select(rows.bundle, rows.version, sa.func.count()).where(rows.version.is_not(None))
    found = connection.execute(query.group_by(rows.bundle, rows.version))
    return {(bundle, version): int(devices) for bundle, version, devices in found}


def states(connection: sa.Connection) -> dict[str, int]:
    """The number of rollouts by state."""
    query = sa.select(ROLLOUTS.c.state, sa.func.count()).group_by(ROLLOUTS.c.state)
    return {state: int(number) for state, number in connection.execute(query)}


_COLUMNS = tuple(
    ROLLOUTS.c[name]
    for name in (
        *("number", "bundle", "version", "baseline", "plan", "salt", "state", "stage", "since", "started"),
        *("why", "revision"),
    )
)


def _new(rollout: Rollout) -> list[int]:
    return [one for one in (rollout.version, rollout.control) if one != rollout.baseline]


def _rollout(row: Sequence[Any]) -> Rollout:
    number, bundle, version, baseline, plan, salt, state, stage, since, started, why, revision = row
    return Rollout(
        number=number,
        bundle=bundle,
        version=version,
        baseline=baseline,
        plan=decode_json(plan, Plan),
        salt=salt,
        state=state,
        stage=stage,
        since=datetime.fromisoformat(since),
        started=datetime.fromisoformat(started),
        why=why,
        revision=revision,
    )


def _known(row: Sequence[Any]) -> Known:
    tags, version, measured, seen = row
    return Known(tags, version, decode_json(measured, dict[str, float]), seen)

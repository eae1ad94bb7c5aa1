"""Versions, jobs, tokens, and a rollout that half of the fleet has reached: views of operators besides devices."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import sqlalchemy as sa

from benchmarks.support.bundles import CHECKOUT
from device_sdk.bundles.bundle import Bundle
from server.rollouts.cohorts import stage_of
from server.rollouts.evidence import Counts
from server.rollouts.plan import Plan, Stage
from server.rollouts.signals import Key, Member, counted
from server.rollouts.store import add_counts
from server.services import Services
from server.state.tables import JOBS, ROLLOUT_DEVICES, TOKENS

NAME = "reference"
_REFERENCE = CHECKOUT / "tests" / "contract" / "bundle"
_BUNDLES, _VERSIONS = 20, 5
JOBS_SHOWN = 200
_STATES = ("done", "done", "done", "failed", "cancelled")
_PLAN = Plan(stages=(Stage(percent=10), Stage(percent=50), Stage(percent=100)), no_rollback=True)
_LATENCIES = {"latency": -0.2, "model_ms": 1.5}
_ROWS_AT_ONCE = 1000


def write_bundles(folder: Path) -> dict[str, int]:
    """Versions of some bundles to serve; of ``NAME`` the version by digest, the oldest first."""
    found = {}
    for number in range(_BUNDLES):
        name = NAME if number == 0 else f"{NAME}-{number}"
        for version in range(1, _VERSIONS + 1):
            place = folder / f"{name}-{version}"
            shutil.copytree(_REFERENCE, place)
            manifest = json.loads((place / "manifest.json").read_bytes()) | {"name": name, "version": version}
            (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
            (place / "manifest.sig").unlink(missing_ok=True)
            if number == 0:
                found[Bundle.open(place).digest] = version
    return found


def add_jobs(services: Services, client: str, now: datetime) -> str:
    """Jobs that are over; the id of the last one."""
    request = {"name": NAME, "model": "zoo:resnet_digits", "data": "digits#search", "validation": "digits#calibration"}
    moment = now.isoformat(timespec="milliseconds")
    rows = [
        {
            **{"id": f"{number:016x}", "client": client, "request": json.dumps(request).encode()},
            **{"state": _STATES[number % len(_STATES)], "created": moment, "started": moment, "finished": moment},
            **{"version": 1, "error": "the model does not fit" if number % len(_STATES) == 3 else None},
            **{"log": "packaging starts\n" * 1000},
        }
        for number in range(JOBS_SHOWN)
    ]
    with services.database.writing() as connection:
        connection.execute(sa.insert(JOBS), rows)
    return str(rows[-1]["id"])


def add_tokens(services: Services, devices: Sequence[str], now: datetime) -> None:
    """A token for each device, as enrolment makes them."""
    moment = now.isoformat(timespec="milliseconds")
    end = now.replace(year=now.year + 1, day=1).isoformat(timespec="milliseconds")
    rows = [
        {
            **{"name": f"enrolled-{one}", "hash": hashlib.sha256(one.encode()).digest(), "created": moment},
            **{"expires": end, "scope": "device", "device": one},
        }
        for one in devices
    ]
    with services.database.writing() as connection:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            connection.execute(sa.insert(TOKENS), rows[start : start + _ROWS_AT_ONCE])


def add_rollout(services: Services, devices: Sequence[str]) -> int:
    """A rollout of the newest version, which the first two stages have and reported well; its number."""
    started = services.rollouts.operators.start(NAME, _VERSIONS, _PLAN, baseline=_VERSIONS - 1, by="bench").rollout
    rows: list[Mapping[str, object]] = []
    for device in devices:
        stage = stage_of(_PLAN, started.salt, device, {})
        if stage is None or stage > 1:
            continue
        rows.append(_row_of(started.number, device, _member(stage)))
    with services.database.writing() as connection:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            connection.execute(sa.insert(ROLLOUT_DEVICES), rows[start : start + _ROWS_AT_ONCE])
        add_counts(connection, started.number, _times(counted(_member(0)), len(rows)))
    return started.number


def _member(stage: int) -> Member:
    return Member(_VERSIONS, stage, tried=True, installed=_VERSIONS, values=_LATENCIES, before=_LATENCIES)


def _times(counts: Mapping[Key, Counts], devices: int) -> dict[Key, Counts]:
    """The counts of so many devices that report the same."""
    return {
        key: Counts(devices * one.devices, devices * one.events, devices * one.total, devices * one.squares)
        for key, one in counts.items()
    }


def _row_of(rollout: int, device: str, member: Member) -> Mapping[str, object]:
    return {
        **{"rollout": rollout, "device": device, "version": member.version, "stage": member.stage},
        **{"installed": member.installed, "member": msgspec.json.encode(member)},
    }

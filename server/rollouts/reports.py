"""Rollouts as JSON for operators: stages, devices, signals with intervals, bytes to deliver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import msgspec

from device_sdk.delivery.assignment import decode_tags
from server.errors import NotFoundError
from server.rollouts import store
from server.rollouts.cohorts import stage_of
from server.rollouts.decisions import Rollout, findings, waits_for_approval
from server.rollouts.evidence import Counts, Difference, paired, share_interval
from server.rollouts.operating import FLEET_LOOKED_AT
from server.rollouts.signals import ALL, FLAGS, PAIRS, VALUES, Key
from server.state.bundle_store import BundleStore
from server.state.catalogue import ServedBundle
from server.state.database import Database

_LISTED = 100
_OTHERS = -1  # devices that no stage adds


class Reports:
    """Reads rollouts for operators."""

    def __init__(self, database: Database, bundles: BundleStore, now: Callable[[], datetime]) -> None:
        self._database, self._bundles, self._now = database, bundles, now

    def listing(self) -> list[dict[str, Any]]:
        """The latest rollouts, the newest first."""
        with self._database.reading() as connection:
            return [self._head(one) for one in store.all_of(connection, limit=_LISTED)]

    def report(self, number: int) -> dict[str, Any]:
        """A rollout in full (NotFoundError if there is none)."""
        with self._database.reading() as connection:
            rollout = store.find(connection, number)
            counts = store.counts(connection, number)
            got = store.devices_by_stage(connection, number)
            size = store.fleet_size(connection, rollout.bundle)
            fleet = store.fleet(connection, rollout.bundle, limit=FLEET_LOOKED_AT)
        have = {version: sum(n for _, one, n, _ in got if one == version) for _, version, _, _ in got}
        return {
            **self._head(rollout),
            "plan": msgspec.to_builtins(rollout.plan),
            "fleet_devices": size,
            "share": have.get(rollout.version, 0) / size if size else None,
            "stages": self._stages(rollout, got, fleet, size),
            "signals": [
                {**asdict(one), "halts": one.halts, "doubtful": one.is_doubtful} for one in findings(rollout, counts)
            ],
            "versions": [_version(version, counts) for version in sorted({rollout.control, rollout.version})],
        }

    def _head(self, rollout: Rollout) -> dict[str, Any]:
        return {
            "number": rollout.number,
            "bundle": rollout.bundle,
            "version": rollout.version,
            "baseline": rollout.baseline,
            "against": rollout.plan.against,
            "state": rollout.state,
            "stage": rollout.stage,
            "stages_planned": len(rollout.plan.stages),
            "why": rollout.why,
            "started": rollout.started.isoformat(timespec="seconds"),
            "since": rollout.since.isoformat(timespec="seconds"),
            "waits_for_approval": waits_for_approval(rollout, self._now()),
            "rollback": not rollout.plan.no_rollback,
        }

    def _stages(
        self,
        rollout: Rollout,
        got: list[tuple[int, int, int, int]],
        fleet: list[tuple[str, store.Known]],
        size: int,
    ) -> list[dict[str, Any]]:
        """The parts of the stages: devices that are known, bytes that they lack, and who got which version so far."""
        versions = self._served(rollout.bundle)
        reached: dict[int, Counter[int | None]] = {number: Counter() for number in range(len(rollout.plan.stages))}
        tags = {text: decode_tags(text) for text in {known.tags for _, known in fleet}}
        for device, known in fleet:
            number = stage_of(rollout.plan, rollout.salt, device, tags[known.tags])
            reached.setdefault(_OTHERS if number is None else number, Counter())[known.version] += 1
        scale = size / len(fleet) if fleet else 1.0
        found = []
        for number, stage in enumerate(rollout.plan.stages):
            here = reached[number]
            size_bytes = sum(n * missing_bytes(versions, rollout.version, of) for of, n in here.items())
            delivered = [(version, n, running) for at, version, n, running in got if at == number]
            found.append(
                {
                    **msgspec.to_builtins(stage),
                    "known_devices": round(scale * here.total()),
                    "bytes": round(scale * size_bytes) if rollout.version in versions else None,
                    "devices": {str(version): {"got": n, "run": running} for version, n, running in delivered},
                }
            )
        return found

    def _served(self, bundle: str) -> dict[int, ServedBundle]:
        try:
            return {one.version: one for one in self._bundles.listing().versions(bundle)}
        except NotFoundError:
            return {}


def missing_bytes(versions: Mapping[int, ServedBundle], version: int, of: int | None) -> int:
    """Bytes of ``version`` that a device with the version ``of`` lacks; of None: all. 0 if it is not served."""
    new = versions.get(version)
    if new is None or of == version:
        return 0
    old = None if of is None else versions.get(of)
    held = {} if old is None else old.blob_sizes
    return len(new.manifest) + sum(size for blob, size in new.blob_sizes.items() if blob not in held)


def _version(version: int, counts: Mapping[Key, Counts]) -> dict[str, Any]:
    """The reports of the devices with one version, with 95 % intervals. Latencies are geometric means of ratios."""
    none = Counts()
    shares, means = {}, {}
    for flag in FLAGS:
        one = counts.get((version, ALL, flag), none)
        low, high = share_interval(one)
        share = one.events / one.devices if one.devices else None
        shares[flag] = {"devices": one.devices, "events": one.events, "share": share, "low": low, "high": high}
    for signal in (*VALUES, *(name + PAIRS for name in VALUES)):
        one = counts.get((version, ALL, signal), none)
        found: Difference | None = paired(one)
        if found is not None:
            means[signal] = {"devices": one.devices, "mean": found.value, "low": found.low(), "high": found.high()}
    return {"version": version, "shares": shares, "means": means}

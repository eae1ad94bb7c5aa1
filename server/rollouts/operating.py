"""Commands of operators: start, pause, resume, approve, reverse."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from device_sdk.delivery.assignment import decode_tags
from device_sdk.errors import BundleError
from device_sdk.signing.rollback import Rollback, verify_rollback
from server.errors import ConflictError, UnprocessableError
from server.rollouts import store
from server.rollouts.cohorts import stage_of
from server.rollouts.decisions import ACTIVE, Rollout, Step, approved, reversal
from server.rollouts.plan import Plan, check_plan
from server.state.bundle_store import BundleStore
from server.state.catalogue import ServedBundle
from server.state.database import Database

FLEET_LOOKED_AT = 20_000  # devices; of a larger fleet these stand for all
NO_ROLLBACK = "without a rollback: reversing stops further devices, and those that have the version keep it"


@dataclass(frozen=True)
class Started:
    """A rollout that has begun. ``warnings``: for the operator."""

    rollout: Rollout
    warnings: tuple[str, ...]


class Operators:
    """Changes rollouts. Of two that change one at the same time, the second gets a ConflictError."""

    def __init__(self, database: Database, bundles: BundleStore, now: Callable[[], datetime]) -> None:
        self._database, self._bundles, self._now = database, bundles, now

    def start(self, bundle: str, version: int, plan: Plan, *, baseline: int | None, by: str) -> Started:
        """Begin to roll ``version`` out, or plan it where that is not published yet.

        ``baseline``: the version that it replaces, by default what devices get now.

        Raises:
            NotFoundError: no such bundle. UnprocessableError: the plan or the versions make no sense, the first stage
            is empty, or there is no rollback. ConflictError: another rollout is not over. StorageError.
        """
        check_plan(plan)
        versions = {one.version: one for one in self._bundles.listing().versions(bundle)}
        with self._database.writing() as connection:
            before = store.latest(connection, bundle)
            if before is not None and before.state in ACTIVE:
                raise ConflictError(
                    f"rollout {before.number} of {bundle} is {before.state}",
                    hint="wait until it is done, or reverse it first",
                )
            replaced = _replaced(before, versions, version) if baseline is None else baseline
            _check_versions(bundle, version, replaced, plan, versions)
            if plan.no_rollback:
                _check_none_above(connection, bundle, version, replaced)
            else:
                require_rollback(versions[replaced], version, now_s=self._now().timestamp())
            salt = secrets.token_hex(8)
            warnings = _check_cohort(connection, bundle, plan, salt) + ((NO_ROLLBACK,) if plan.no_rollback else ())
            rollout = store.start(
                connection,
                bundle,
                version=version,
                baseline=replaced,
                plan=plan,
                salt=salt,
                state="running" if version in versions else "planned",
                now=self._now(),
                by=by,
            )
        return Started(rollout, warnings)

    def pause(self, number: int, *, by: str) -> None:
        """Let no further device have the version (ConflictError: it does not run)."""
        self._change(number, ("planned", "running"), lambda one: Step("paused", one.stage, f"paused by {by}"))

    def resume(self, number: int, *, by: str) -> None:
        """Go on with the stage that was paused, for its whole time (ConflictError: it is not paused)."""
        self._change(number, ("paused",), self._resumed)

    def approve(self, number: int, *, by: str) -> None:
        """Begin the next stage; after the last one give all devices the version (ConflictError: it does not run)."""
        self._change(number, ("running", "paused"), approved)

    def reverse(self, number: int, *, by: str) -> None:
        """Send devices back to the version that was replaced (ConflictError: it is over, and not done)."""
        states = ("planned", "running", "paused", "done")
        self._change(number, states, lambda one: reversal(one, f"reversed by {by}"))

    def _resumed(self, rollout: Rollout) -> Step:
        served = [one.version for one in self._bundles.listing().versions(rollout.bundle)]
        return Step("running" if rollout.version in served else "planned", rollout.stage)

    def _change(self, number: int, states: tuple[str, ...], step: Callable[[Rollout], Step]) -> None:
        with self._database.writing() as connection:
            rollout = store.find(connection, number)
            newest = store.latest(connection, rollout.bundle)
            if rollout.state not in states or newest is None or newest.number != number:
                over = "another was started since" if newest and newest.number != number else f"it is {rollout.state}"
                raise ConflictError(f"not possible with rollout {number}: {over}")
            if not store.take(connection, rollout, step(rollout), self._now()):
                raise ConflictError(f"rollout {number} has just changed", hint="look at it again")


def _replaced(before: Rollout | None, versions: dict[int, ServedBundle], version: int) -> int:
    """The version that devices without a rollout get now."""
    if before is not None:
        return before.version if before.state == "done" else before.baseline
    return max((one for one in versions if one < version), default=0)


def _check_versions(bundle: str, version: int, replaced: int, plan: Plan, versions: dict[int, ServedBundle]) -> None:
    if version not in versions and version < max(versions):
        raise UnprocessableError(f"version {version} of {bundle} is not served")
    if replaced >= version:
        raise UnprocessableError(f"devices have {bundle} {replaced}; a rollout leads to a higher version")
    against = replaced if plan.against is None else plan.against
    for needed in (replaced, against):
        if needed not in versions:
            raise UnprocessableError(
                f"there is no version {needed or 'before ' + str(version)} of {bundle} to go back to",
                hint="publish it, or name another one as the version that is replaced",
            )
    if not replaced <= against < version:
        raise UnprocessableError(f"an A/B rollout compares with a version from {replaced} to {version - 1}")


def require_rollback(replaced: ServedBundle, version: int, *, now_s: float) -> Rollback:
    """The rollback from ``version`` to the one that is replaced (UnprocessableError: there is none that is valid).

    Its signature is for devices to check: a server knows no keys.
    """
    what = f"there is no valid rollback from {replaced.name} {version} to {replaced.version}"
    hint = f"pathweave sign rollback FOLDER --from-version {version}, publish it; or start it with --no-rollback"
    if replaced.rollback is None:
        raise UnprocessableError(what, hint=hint)
    try:
        found = verify_rollback(replaced.rollback, None)
    except BundleError as error:
        raise UnprocessableError(f"{what}: {error}", hint=hint) from error
    leads = found.name, found.to_version, found.to_manifest_sha256
    fits = leads == (replaced.name, replaced.version, replaced.bundle.digest) and found.from_version >= version
    if not fits or found.expires_at_s < now_s:
        raise UnprocessableError(f"{what}: it has expired" if fits else f"{what}: it is for others", hint=hint)
    return found


def _check_none_above(connection: sa.Connection, bundle: str, version: int, replaced: int) -> None:
    """Refuse a rollout that devices outside its stages cannot follow: they take a lower version only by a rollback."""
    above = store.devices_above(connection, bundle, replaced, but=version)
    if above:
        raise UnprocessableError(
            f"known devices with a version above {replaced}: {above}; they do not go back to it without a rollback",
            hint="name the version that they have as the baseline, or sign a rollback and leave --no-rollback out",
        )


def _check_cohort(connection: sa.Connection, bundle: str, plan: Plan, salt: str) -> tuple[str, ...]:
    """Refuse a first stage that none of the known devices is in; returns a warning where none is known."""
    known = store.fleet(connection, bundle, limit=FLEET_LOOKED_AT)
    if not known:
        return (f"no device has asked for {bundle} yet: the stages are not checked",)
    if plan.stages[0].devices or any(stage_of(plan, salt, device, decode_tags(one.tags)) == 0 for device, one in known):
        return ()
    raise UnprocessableError(
        f"the first stage has none of the {len(known)} known devices",
        hint="raise its percentage, see that devices send its tags, or name devices",
    )

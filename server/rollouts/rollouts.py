"""Rollouts as the rest of the server sees them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from server.rollouts import store
from server.rollouts.assigning import Assignments
from server.rollouts.device_versions import DeviceVersions
from server.rollouts.observing import Observations
from server.rollouts.operating import Operators
from server.rollouts.reports import Reports
from server.state.bundle_store import BundleStore
from server.state.database import Database


class Rollouts:
    """The rollouts in a database. Thread-safe; replicas decide by comparing revisions there.

    ``assign``: a device's version; ``version_without_asking``: of clients that do not ask for it; ``for_device``: the
    bundle that a request of a device works with; ``observe``: an observer of new log lines; ``operators``: changes
    them.
    """

    def __init__(self, database: Database, bundles: BundleStore, *, now: Callable[[], datetime]) -> None:
        self._database = database
        self._reports = Reports(database, bundles, now)
        assignments = Assignments(database, bundles, now)
        self.assign, self.version_without_asking = assignments.assign, assignments.without_asking
        self.for_device = DeviceVersions(assignments, bundles).find
        self.observe = Observations(bundles, now).observe
        self.operators = Operators(database, bundles, now)

    def listing(self) -> list[dict[str, Any]]:
        """The latest rollouts, the newest first."""
        return self._reports.listing()

    def report(self, number: int) -> dict[str, Any]:
        """A rollout by stage, signal and version (NotFoundError if there is none)."""
        return self._reports.report(number)

    def states(self) -> dict[str, float]:
        """The number of rollouts by state."""
        with self._database.reading() as connection:
            return {state: float(number) for state, number in store.states(connection).items()}

    def versions_in_the_field(self) -> dict[str, float]:
        """Devices by ``NAME VERSION``."""
        with self._database.reading() as connection:
            found = store.versions_in_the_field(connection)
        return {f"{bundle} {version}": float(devices) for (bundle, version), devices in sorted(found.items())}

"""The services behind the routes, built from the settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.onnx_runtime import keeps_spin_us
from device_sdk.runtimes.port import Runtime
from server.access.enrolment import AttemptLimit, Enrolments
from server.access.shared_limits import LeasedShares, SharedAttemptLimit
from server.access.tokens import Gate, TokenStore
from server.fleet.aggregates import Aggregates
from server.fleet.filling import Filling
from server.fleet.listing import DeviceFilter
from server.fleet.store import FleetStore
from server.http.tracing import new_provider, tracing_wanted
from server.inference.models import ModelCache
from server.inference.queue import BatchQueue
from server.jobs.job_objects import open_job_objects
from server.jobs.job_user import user_of
from server.jobs.runner import JobRunner
from server.jobs.store import JobStore
from server.metrics import Metrics, Reading
from server.readiness import Readiness
from server.rollouts.rollouts import Rollouts
from server.settings import Settings, database_path
from server.state.bundle_store import open_bundles
from server.state.database import Database, utc_now
from server.state.log_store import LogStore

_MOST_VERSIONS = 50  # that metrics tell apart
_SPIN_US = 50  # bridges the time between two operators of one inference


class Services:
    """All services of a server.

    Raises:
        StorageError: the data folder, the database or the store of bundles cannot be used.
        UsageError: an invalid URL, settings that exclude each other, or tracing is wanted without its extra.
    """

    def __init__(
        self, settings: Settings, *, runtime: Runtime | None = None, now: Callable[[], datetime] = utc_now
    ) -> None:
        self.settings, self.now = settings, now
        self.database = database = Database(settings.database or database_path(settings.data_folder))
        self.bundles = open_bundles(
            settings.bundles,
            cache=settings.cache_folder,
            cache_bytes=settings.cache_bytes,
            signed_urls=settings.signed_urls,
        )
        self.tokens = TokenStore(database, now=now)
        self.gate = Gate(self.tokens, settings.token)
        self.enrolments = Enrolments(database, now=now)
        self.enrolment_attempts = SharedAttemptLimit(database) if database.is_shared else AttemptLimit()
        self.readiness = Readiness({"database": database.check, "bundles": self.bundles.check})
        self._shares = _shares(database, settings.client_share)
        self.rollouts = Rollouts(database, self.bundles, now=now)
        aggregates = Aggregates(now=now)
        self.fleet, self.filling = FleetStore(database), Filling(database, aggregates)
        self.logs = LogStore(
            database,
            keep_lines=settings.keep_log_lines,
            keep_digests=settings.keep_log_digests,
            observers=(self.rollouts.observe, aggregates),
            now=now,
        )
        self.metrics = Metrics(self._states())
        self.tracing = new_provider() if tracing_wanted() else None
        places = settings.inference_threads if runtime is None else 1
        self.models = ModelCache(
            runtime or make_runtime(threads=places, spin_us=_SPIN_US if keeps_spin_us() else 0),
            limit=settings.max_models,
            beside=make_runtime(threads=1) if places > 1 else None,
        )
        self.queue = BatchQueue(
            limit=settings.queue_limit,
            client_share=settings.client_share,
            shares=self._shares,
            max_batch=settings.max_batch,
            places=places,
            observe=self.metrics.batch,
        )
        self.jobs = JobStore(database, now=now)
        self.runner = JobRunner(
            self.jobs, self.bundles, settings, now=now, user=user_of(settings), objects=open_job_objects(settings)
        )
        self.filling.start()
        if settings.jobs_at_once:
            self.runner.start()

    def _states(self) -> list[Reading]:
        """Gauges that a scrape reads."""
        return [
            Reading(
                "pathweave_inference_requests",
                "Inference requests that wait or run.",
                lambda: {"": float(len(self.queue))},
            ),
            Reading("pathweave_bundles", "Bundles that are served, and those that are broken.", self._bundles, "state"),
            Reading("pathweave_jobs", "Packaging jobs by state.", lambda: self.jobs.counts(), "state"),
            Reading("pathweave_devices", "Devices that sent logs.", lambda: {"": float(self.fleet.device_count())}),
            Reading("pathweave_rollouts", "Rollouts by state.", self.rollouts.states, "state"),
            Reading(
                "pathweave_bundle_devices",
                "Devices by the bundle and version that their log lines named last.",
                self.rollouts.versions_in_the_field,
                "bundle",
            ),
            Reading("pathweave_devices_over_budget", "Devices whose plan is over its budget.", self._over_budget),
        ]

    def _over_budget(self) -> dict[str, float]:
        return {"": float(self.fleet.count(DeviceFilter(over_budget=True)))}

    def _bundles(self) -> dict[str, float]:
        listing = self.bundles.listing()
        return {"served": float(len(listing.bundles)), "broken": float(len(listing.broken))}

    def close(self) -> None:
        """Stop inference and the workers of jobs, and close bundles and database. Idempotent."""
        self.queue.close()
        self.readiness.close()
        self.filling.close()
        self.runner.close()
        self.bundles.close()
        if self._shares is not None:
            self._shares.close()
        self.database.close()
        if self.tracing is not None:
            self.tracing.shutdown()  # sends what waits


def _shares(database: Database, share: int | None) -> LeasedShares | None:
    """None: each server counts by itself, in memory."""
    if share is None or not database.is_shared:
        return None
    shares = LeasedShares(database, share)
    shares.start()
    return shares

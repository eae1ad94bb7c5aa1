"""Packaging jobs beside a fleet: real ones on two machines, of which one is killed, and the fate of every job."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.site import Site
from device_sdk.errors import PathweaveError, StorageError
from device_sdk.files.atomic import decode_json
from server.asking import ask_server
from server.jobs.store import JobStore, State
from server.state.database import Database
from server.state.object_store import ObjectError, ObjectStore
from server.state.version_record import RECORD_MAX_BYTES, VersionRecord, decoded, version_of

NAME = "packaged"
_MACHINES = 2
_PATIENCE_S = 180.0  # for all jobs, after the devices are done
_PAUSE_S = 0.5
_BLOB_BYTES = 64 * 2**20
_REQUEST = {
    "name": NAME,
    "model": "zoo:resnet_digits",
    "data": "digits#search",
    "validation": "digits#calibration",
    "recipe": {
        **{"steps": 2, "gamma": 0.5, "max_span": 2, "identity": False, "exit_positions": 0, "variants": 1},
        **{"batch": 8, "flip": False, "checkpoint_seconds": 0},
    },
}


@dataclass(frozen=True)
class Fate:
    """The end of an accepted job. ``state``: None if no server knows it; ``published``: the version, None without."""

    state: str | None
    error: str | None = None
    published: int | None = None


@dataclass(frozen=True)
class Counted:
    """``lost``: jobs; ``repeated``: versions of a job that has another one already; ``torn``: versions and blobs."""

    lost: int
    repeated: int
    torn: int


def count_fates(fates: Iterable[Fate], versions: Sequence[int], torn: int) -> Counted:
    """Compare jobs with the versions in the store. A job is not lost if its version is there, or it failed for a
    reason.
    """
    all_fates, present = list(fates), set(versions)
    published = [one.published for one in all_fates if one.state == State.DONE and one.published in present]
    failed = [one for one in all_fates if one.state == State.FAILED and one.error]
    lost = len(all_fates) - len(set(published)) - len(failed)
    return Counted(lost, len(versions) - len(set(published)), torn)


def torn_in(store: ObjectStore) -> int:
    """Blobs that differ from their digests, and versions whose record is damaged or names a blob that is not there."""
    torn, present = 0, set()
    for entry in list(store.list("blobs")):
        named = entry.key.rpartition("/")[2]
        found = store.read(entry.key, max_bytes=_BLOB_BYTES)
        present.add(named)
        torn += found is None or hashlib.sha256(found.data).hexdigest() != named
    for entry in list(store.list("bundles")):
        if version_of(entry.key, ".json") is not None:
            torn += not _is_whole(store, entry.key, present)
    return torn


def versions_in(store: ObjectStore, name: str) -> list[int]:
    """The versions of a name in the store."""
    found = (version_of(entry.key, ".json") for entry in store.list(f"bundles/{name}"))
    return sorted(version for version in found if version is not None)


def _is_whole(store: ObjectStore, key: str, present: set[str]) -> bool:
    found = store.read(key, max_bytes=RECORD_MAX_BYTES)
    try:
        record = None if found is None else decoded(found.data, VersionRecord, key)
    except ObjectError:
        return False
    needed = set() if record is None else {record.manifest, *record.blobs, *filter(None, (record.signature,))}
    return record is not None and needed <= present


class Machine:
    """``pathweave worker`` with a folder of its own."""

    def __init__(self, folder: Path, *, database: str, store: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pathweave", "worker", "--bundles", store, "--data", str(folder), "--json"]
        # Threads that wait for each other by spinning would take the devices' processor.
        environment = {**os.environ, "PATHWEAVE_DATABASE_URL": database, "OMP_NUM_THREADS": "1"}
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        told = decode_json(self._process.stdout.readline().encode(), dict[str, Any])
        self.name: str = told["worker"]

    def kill(self) -> None:
        """End it at once; its packager goes with it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Yard:
    """Jobs that a site has accepted, and the machines that run them; the first one is killed in the middle of one."""

    def __init__(self, site: Site, machines: Sequence[Machine], database: Database, store: ObjectStore) -> None:
        self._site, self._machines, self._store = site, machines, store
        self._database, self._jobs = database, JobStore(database)
        self._ids: list[str] = []
        self._open: set[str] = set()
        self.lost_in_the_middle: str | None = None  # the job that the killed machine ran

    def submit(self, count: int) -> None:
        """Have the servers accept jobs."""
        for _ in range(count):
            told = ask_server("POST", self._site.url, "/v1/jobs", dict[str, Any], _REQUEST, what="the job")
            self._ids.append(told["id"])
        self._open = set(self._ids)

    def look(self) -> None:
        """Kill the first machine once it is in the middle of a job, and publish jobs that are done, twice each.

        What fails because a server or the database is away is done at the next look.
        """
        with contextlib.suppress(PathweaveError):
            self._kill_if_due()
        for job_id in sorted(self._open):
            with contextlib.suppress(PathweaveError):
                self._end(job_id)

    def finish(self) -> None:
        """Look until all jobs are over, or patience ends."""
        end = time.monotonic() + _PATIENCE_S
        while (self._open or self.lost_in_the_middle is None) and time.monotonic() < end:
            self.look()
            time.sleep(_PAUSE_S)

    def counted(self) -> Counted:
        """The fates of all accepted jobs."""
        return count_fates(map(self._fate, self._ids), versions_in(self._store, NAME), torn_in(self._store))

    def moved(self) -> int:
        """Jobs that one machine began and another one ended."""
        jobs = (self._jobs.find(job_id) for job_id in self._ids)
        return sum(job.attempt > 1 and job.state is State.DONE for job in jobs)

    def rows(self) -> list[dict[str, object]]:
        """A row for each job."""
        jobs = [self._jobs.find(job_id) for job_id in self._ids]
        return [
            {
                "what": "packaging job",
                "state": job.state.value,
                "attempts": job.attempt,
                "version": job.published_version,
                "why": job.error or "",
            }
            for job in jobs
        ]

    def _kill_if_due(self) -> None:
        victim = self._machines[0]
        if self.lost_in_the_middle is None:
            for job in self._jobs.in_state(State.RUNNING):
                if job.owner == victim.name and job.progress is not None and job.id in self._open:
                    victim.kill()
                    self.lost_in_the_middle = job.id

    def _end(self, job_id: str) -> None:
        told = ask_server("GET", self._site.url, f"/v1/jobs/{job_id}", dict[str, Any], what="the job")
        if told["state"] == State.DONE:
            for _ in range(2):  # as an operator who does not trust the first answer
                path = f"/v1/jobs/{job_id}/publish"
                told = ask_server("POST", self._site.url, path, dict[str, Any], {}, what="publishing")
        if told["state"] in (State.FAILED, State.CANCELLED) or told["published"]:
            self._open.discard(job_id)

    def _fate(self, job_id: str) -> Fate:
        try:
            job = self._jobs.find(job_id)
        except StorageError:
            raise
        except PathweaveError:  # not found
            return Fate(None)
        return Fate(job.state.value, job.error, None if job.published is None else job.published_version)


@contextmanager
def running_yard(site: Site, folder: Path, *, database: str, store: str) -> Iterator[Yard]:
    """Two machines without jobs."""
    opened, machines = Database(database, upgraded=False), []
    try:
        for number in range(_MACHINES):
            machines.append(Machine(folder / f"machine-{number}", database=database, store=store))
        yield Yard(site, machines, opened, ObjectStore.at(store))
    finally:
        for machine in machines:
            machine.kill()
        opened.close()

"""Settings of a server: where bundles and state are, and limits."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST
from device_sdk.machine import usable_cores

MIB = 2**20  # bytes


@dataclass(frozen=True)
class Settings:
    """The settings of one server.

    ``bundles``: the served folder, or the URL of an object store; ``database``: the URL of a PostgreSQL that servers
    share, which may hold a password; None: a file in ``data_folder``. ``cache_bytes``: of an object store's blobs on
    this machine; ``signed_urls``: clients that can are sent to the object store for blobs.
    ``allowed_hosts``: names of this server in the header Host, if no token is required. ``queue_limit``: maximum infer
    requests that wait or run; ``client_share``: of them per client; ``max_batch``: rows per run, ``max_rows`` per
    request; ``max_body_bytes``: limit of a body as received and decompressed, ``max_json_bytes`` of the JSON in it (as
    Python objects it takes many times its size). ``jobs_at_once``: 0 disables jobs; ``max_weights_bytes``: limit of
    weights sent with a job; ``job_user``: the system's user that jobs run as; ``job_tags``: what jobs may ask of this
    machine; ``job_lease_s``: after so long without a word of its machine a job goes on elsewhere; ``signing_key``:
    private key for published bundles of jobs; ``package_command``: the packager's command line.
    """

    bundles: Path | str
    data_folder: Path
    database: str | None = field(default=None, repr=False)
    cache_bytes: int = 20_000_000_000
    signed_urls: bool = False
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    queue_limit: int = 32
    client_share: int | None = None
    max_batch: int = 64
    inference_threads: int = field(default_factory=usable_cores)
    max_models: int = 4
    infer_timeout_s: float = 60.0
    max_body_bytes: int = 64 * MIB
    max_json_bytes: int = 16 * MIB
    max_rows: int = 4096  # of an infer request
    max_log_body_bytes: int = 4_000_000
    max_log_line_bytes: int = 64_000
    keep_log_lines: int = 10_000  # per device
    keep_log_digests: int = 100_000  # of lines that were dropped, per device; its log has fewer
    jobs_at_once: int = 1
    max_queued_jobs: int = 16
    max_weights_bytes: int = 256 * MIB
    keep_jobs: int = 100  # finished ones, per client
    job_minutes: float | None = 720.0
    job_memory_bytes: int | None = None
    job_disk_bytes: int | None = 20_000_000_000
    job_user: str | None = None
    job_tags: tuple[str, ...] = ()
    job_lease_s: float = 30.0
    job_poll_s: float = 2.0  # between two looks for jobs, and two renewals of leases
    job_checkpoint_s: float = 30.0  # between two copies of a job's saved work for other machines
    signing_key: Path | None = None
    package_command: tuple[str, ...] = (sys.executable, "-m", "pathweave", "package")

    @property
    def folder(self) -> Path | None:
        """The served folder; None if bundles are in an object store."""
        return self.bundles if isinstance(self.bundles, Path) else None

    @property
    def cache_folder(self) -> Path:
        """The folder for what is read of an object store."""
        return self.data_folder / "bundles"

    @property
    def memory_bytes(self) -> int:
        """Memory for the bodies of all requests and what is made of them; the largest fits in half of it."""
        return max(256 * MIB, 16 * self.max_body_bytes)

    @property
    def upload_bytes(self) -> int:
        """Disk space for the bodies of all job submissions; the largest fits in half of it."""
        return 4 * self.max_weights_bytes

    @property
    def takes_jobs(self) -> bool:
        """True if packaging jobs run here, or on machines that share the database."""
        return self.jobs_at_once > 0 or self.database is not None

    @property
    def largest_body_bytes(self) -> int:
        """The largest body that any route accepts."""
        return max(self.max_body_bytes, self.max_weights_bytes if self.takes_jobs else 0)


def database_path(data_folder: Path) -> Path:
    """The path of the SQLite file in a data folder, with tokens, log lines and jobs."""
    return data_folder / "server.sqlite3"


def default_data_folder(folder: Path) -> Path:
    """A hidden folder in ``folder``, or beside it if ``folder`` is a bundle, since that may be replaced as a whole."""
    folder = folder.resolve()
    return (folder.parent if (folder / MANIFEST).exists() else folder) / ".pathweave-server"

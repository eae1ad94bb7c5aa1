"""A site of several servers on one PostgreSQL and one S3 server, behind a balancer; each of them can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from device_sdk.errors import TransferError
from server.moving import move_bundles
from server.state.object_bundles import ObjectBundles
from server.state.object_store import ObjectStore
from tests.server.engines import PostgresProcess, postgres_process, s3_server

_PATIENCE_S = 60.0
_REQUESTS = "pathweave_requests_total{"


class Site:
    """``count`` servers; ``url``: of the balancer; ``store``: of the bundles."""

    def __init__(self, folder: Path, *, database: str, store: str, postgres: PostgresProcess, count: int) -> None:
        self._folder, self._database, self.store, self._postgres = folder, database, store, postgres
        self._ports = [_free_port() for _ in range(count)]
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self.start(number)
        command = [sys.executable, "-m", "benchmarks.fleet.balancer", *map(str, self._ports)]
        self._balancer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._balancer.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._balancer.stdout.readline())}"

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self._ports)

    def publish(self, folder: Path) -> None:
        """Publish all versions in ``folder``."""
        target = ObjectBundles(ObjectStore.at(self.store), self._folder / "publisher", cache_bytes=0)
        try:
            list(move_bundles(folder, target))
        finally:
            target.close()

    def start(self, number: int) -> None:
        """Start a server, and wait until it is ready."""
        data = self._folder / f"server-{number}"
        data.mkdir(parents=True, exist_ok=True)
        options = ("--bundles", self.store, "--port", str(self._ports[number]), "--threads", "1", "--data", str(data))
        command = [sys.executable, "-m", "pathweave", "serve", *options]
        environment = {**os.environ, "PATHWEAVE_DATABASE_URL": self._database}
        with (data / "server.log").open("ab") as log:
            self._servers[number] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        end = time.monotonic() + _PATIENCE_S
        while not _is_ready(self._ports[number]):
            if time.monotonic() > end or self._servers[number].poll() is not None:
                raise TransferError(f"server {number} did not start; see {data / 'server.log'}")
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        """End a server at once, with what it does."""
        self._servers[number].kill()
        self._servers[number].wait()

    def drain(self, number: int) -> None:
        """Let a server end what it does."""
        self._servers[number].send_signal(signal.SIGTERM)
        self._servers[number].wait(_PATIENCE_S)

    def restart_database(self) -> None:
        """Stop PostgreSQL, with all its connections, and start it again."""
        self._postgres.stop()
        self._postgres.start()

    def requests(self, *, status: int | None = None) -> float:
        """Requests that the servers have answered since they were started, all or those with a status."""
        wanted = "" if status is None else f'status="{status}"'
        total = 0.0
        for port in self._ports:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                lines = reply.read().decode().splitlines()
            total += sum(
                float(line.rpartition(" ")[2]) for line in lines if line.startswith(_REQUESTS) and wanted in line
            )
        return total

    def close(self) -> None:
        """End everything."""
        self._balancer.kill()
        self._balancer.wait()
        for server in self._servers.values():
            server.kill()
            server.wait()


@contextmanager
def running_site(folder: Path, *, count: int) -> Iterator[tuple[Site, str]]:
    """A site without bundles, and the URL of its database (MissingEngineError if an engine cannot run here)."""
    with postgres_process() as (process, postgres), s3_server() as s3:
        os.environ.update(s3.environment)
        database = postgres.empty()
        site = Site(folder, database=database, store=s3.new(), postgres=process, count=count)
        try:
            yield site, database
        finally:
            site.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False

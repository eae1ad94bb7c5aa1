"""A PostgreSQL and an S3 server of the tests' own, or the reason why there is none."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
_TEMPLATE = "pathweave_template"


class MissingEngineError(Exception):
    """An engine cannot be started here; says why."""


def _postgres_program() -> Path:
    """The newest one: Debian keeps those programs out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    beside = shutil.which("postgres")
    if not found and beside is None:
        raise MissingEngineError("needs PostgreSQL: apt-get install postgresql")
    return found[-1] if found else Path(beside or "").resolve()


def _postgres_user() -> str | None:
    """PostgreSQL refuses to run as root. None: the tests' own user."""
    if os.geteuid() != 0:
        return None
    import pwd

    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise MissingEngineError("PostgreSQL does not run as root, and there is no user postgres") from None


class Postgres:
    """A running PostgreSQL, reached by a socket in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, count(1)

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def new(self) -> str:
        """The URL of a new database with the newest schema."""
        name = f"test_{next(self._numbers)}"
        self.run(f'CREATE DATABASE "{name}" TEMPLATE "{_TEMPLATE}"')
        return self.url(name)

    def empty(self) -> str:
        """The URL of a new database without tables."""
        name = f"test_{next(self._numbers)}"
        self.run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def run(self, statement: str) -> None:
        """Run one statement as the administrator."""
        import psycopg

        with psycopg.connect(f"host={self._folder} user=postgres dbname=postgres", autocommit=True) as connection:
            connection.execute(statement)

    def prepare(self) -> None:
        """Make what new databases are copied from."""
        from server.state.database import Database

        self.run(f'CREATE DATABASE "{_TEMPLATE}"')
        Database(self.url(_TEMPLATE)).close()


class PostgresProcess:
    """Starts, stops and kills PostgreSQL on one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._program, self._user = folder, _postgres_program(), _postgres_user()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run(
            "initdb",
            "-D",
            str(folder / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "--no-locale",
            "-E",
            "UTF8",
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), "fsync": "off"}
        settings |= {"shared_buffers": "16MB", "full_page_writes": "off", "max_connections": "200"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "-D", str(self._folder / "data"), *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/",
            )
        end = time.monotonic() + PATIENCE_S
        while self._call("pg_isready", "-q", "-h", str(self._folder)).returncode:
            if time.monotonic() > end or self._process.poll() is not None:
                raise MissingEngineError("PostgreSQL does not start")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, and its connections with it."""
        if self._process is not None:
            self._process.send_signal(2)  # SIGINT: fast shutdown
            self._process.wait(PATIENCE_S)

    def _run(self, name: str, *arguments: str) -> None:
        done = self._call(name, *arguments)
        if done.returncode:
            raise MissingEngineError(f"{name} failed: {done.stderr.decode(errors='replace')[-200:]}")

    def _call(self, name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(self._program.with_name(name)), *arguments]
        return subprocess.run(command, capture_output=True, user=self._user, cwd="/", timeout=PATIENCE_S)


@contextmanager
def postgres_process() -> Iterator[tuple[PostgresProcess, Postgres]]:
    """PostgreSQL on a folder of its own while it is needed (MissingEngineError if it cannot run here)."""
    try:
        import psycopg as _  # noqa: F401
    except ImportError as error:
        raise MissingEngineError("needs psycopg: pip install 'pathweave[fleet]'") from error
    folder = Path(tempfile.mkdtemp(prefix="pathweave-pg-"))
    folder.chmod(0o755)
    try:
        process = PostgresProcess(folder)
        process.start()
        try:
            yield process, Postgres(folder)
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class S3:
    """A running S3 server that honours conditional writes; clients find it by the environment."""

    def __init__(self, client: Any, environment: dict[str, str]) -> None:
        self.client, self.environment, self._numbers = client, environment, count(1)

    def new(self) -> str:
        """The URL of a new, empty bucket, with a prefix."""
        bucket = f"bundles-{next(self._numbers)}"
        self.client.create_bucket(Bucket=bucket)
        return f"s3://{bucket}/fleet"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Moto's S3 server while it is needed (MissingEngineError without moto and obstore)."""
    try:
        import boto3
        import obstore as _  # noqa: F401
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise MissingEngineError(f"needs {error.name}: pip install 'pathweave[dev]'") from error
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE00001", "AWS_SECRET_ACCESS_KEY": "secretsecretsecretsecret"}
        environment = {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        environment |= {"AWS_REGION": "us-east-1", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )
        yield S3(client, environment)
    finally:
        server.stop()

"""A real server on a free port, and the tiny bundle of the SDK's tests to serve."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flask", reason="needs the extra: pip install 'pathweave[server]'")
pytest.importorskip("sqlalchemy", reason="needs the extra: pip install 'pathweave[server]'")
pytest.importorskip("waitress", reason="needs the extra: pip install 'pathweave[server]'")

from benchmarks.faults.serving import Reply, ask
from device_sdk.bundles.bundle import Bundle
from device_sdk.fragments.composition import Stretch
from device_sdk.logs.adaptation_log import SCHEMA_VERSION
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime
from device_sdk.signing import signatures
from server.app import create_app
from server.http.request_reader import Limits
from server.http.serving import SPARE_THREADS, HttpServer, listen, url_of
from server.moving import move_bundles
from server.services import Services
from server.settings import Settings
from server.state.database import Database
from server.state.object_bundles import ObjectBundles
from server.state.object_store import ObjectStore
from tests.device_sdk.tiny_bundle import draw_images, write_tiny_bundle
from tests.server.engines import S3, MissingEngineError, Postgres, postgres_process, s3_server

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Tiny:
    """The tiny bundle as a folder, who signed it, and labelled images uint8 [60, 20, 20, 3] for it."""

    folder: Path
    private_key: Path
    public_key: Path
    images: np.ndarray
    labels: np.ndarray

    def copy_to(self, folder: Path, **changes: Any) -> Path:
        """A copy with other values in its manifest, signed again."""
        shutil.copytree(self.folder, folder)
        manifest = json.loads((folder / "manifest.json").read_bytes())
        manifest.update(changes)
        data = json.dumps(manifest).encode()
        (folder / "manifest.json").write_bytes(data)
        (folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=self.private_key))
        return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The tiny bundle; never alter it."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    write_tiny_bundle(folder / "bundles" / "tiny", private)
    return Tiny(folder / "bundles" / "tiny", private, public, *draw_images(60, seed=2))


@pytest.fixture(scope="session")
def tiny_bundle(tiny: Tiny) -> Bundle:
    """The tiny bundle, opened."""
    return Bundle.open(tiny.folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for this run of the tests."""
    with ExitStack() as stack:
        try:
            _, running = stack.enter_context(postgres_process())
            running.prepare()
        except MissingEngineError as error:
            pytest.skip(str(error))
        yield running


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server for this run of the tests."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(s3_server())
        except MissingEngineError as error:
            pytest.skip(str(error))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database is or will be: a file, or the URL of one in PostgreSQL."""
    if request.param == "sqlite":
        return tmp_path / "database" / "x.sqlite3"
    return request.getfixturevalue("postgres").new()


@pytest.fixture
def new_database(location: Path | str) -> Iterator[Callable[[], Database]]:
    """Opens the same database again, as another replica does."""
    with ExitStack() as stack:

        def opened() -> Database:
            database = Database(location)
            stack.callback(database.close)
            return database

        yield opened


@pytest.fixture
def database(new_database: Callable[[], Database]) -> Database:
    """A database without rows, of each kind."""
    return new_database()


@dataclass
class Running:
    """A server that runs in this process."""

    server: HttpServer
    services: Services
    host: str
    port: int
    url: str
    thread: threading.Thread

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        return ask((self.host, self.port), path, method=method, body=body, headers=headers)

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        """POST JSON."""
        headers = {"Content-Type": "application/json", **headers}
        return self.ask(path, method="POST", body=json.dumps(value).encode(), headers=headers)

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_S)

    def raw(self, data: bytes, *, end: bool = False) -> bytes:
        """Send bytes and read until the server closes; ``end`` says that nothing more comes."""
        with self.connect() as connection:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def stop(self) -> None:
        """Drain and end."""
        self.server.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


def _run(
    settings: Settings,
    runtime: Runtime | None,
    drain_s: float,
    now: Callable[[], datetime] | None,
    limits: Limits | None = None,
) -> Running:
    listener = listen("127.0.0.1", 0)
    services = Services(settings, runtime=runtime or OnnxRuntime(threads=1), **({"now": now} if now else {}))
    app = create_app(settings, services=services)
    threads = settings.queue_limit + SPARE_THREADS
    server = HttpServer(
        app, listener, threads=threads, max_body_bytes=settings.max_body_bytes, drain_s=drain_s, limits=limits
    )

    def work() -> None:
        server.run()
        services.close()

    host, port = listener.getsockname()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return Running(server, services, host, port, url_of(listener), thread)


@dataclass
class Fleet(Running):
    """Servers that share a PostgreSQL and an object store; each request goes to any of them."""

    replicas: tuple[Running, ...] = ()
    random: Random = field(default_factory=lambda: Random(7))

    @classmethod
    def of(cls, replicas: Sequence[Running]) -> Fleet:
        """The fleet of some servers; what asks for one service gets that of the first."""
        first = replicas[0]
        return cls(
            first.server, first.services, first.host, first.port, first.url, first.thread, replicas=tuple(replicas)
        )

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request to any of them."""
        return self.random.choice(self.replicas).ask(path, method=method, body=body, headers=headers)

    def connect(self) -> socket.socket:
        """A raw connection to any of them."""
        return self.random.choice(self.replicas).connect()

    def stop(self) -> None:
        """Drain and end all."""
        for replica in self.replicas:
            replica.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that start a server run on a file and a folder, and on PostgreSQL and S3, unless they say ``embedded``."""
    for name in ("state", "state_of_session"):
        if name in metafunc.fixturenames:
            marked = {marker.name for marker in metafunc.definition.iter_markers()}
            # Most tests of jobs look into the folder of the server that runs them.
            embedded = "embedded" in marked or (
                metafunc.definition.path.parent.name == "jobs" and "replicas" not in marked
            )
            metafunc.parametrize(name, ["embedded"] if embedded else ["embedded", "fleet"], scope="session")


@dataclass
class FleetState:
    """PostgreSQL and S3 for fleets."""

    postgres: Postgres
    s3: S3

    def settings(self, folder: Path, cache: Path) -> dict[str, Any]:
        """Settings of servers of the bundles in ``folder``, which are published first."""
        url = self.s3.new()
        target = ObjectBundles(ObjectStore.at(url), cache, cache_bytes=0)
        try:
            list(move_bundles(folder, target))
        finally:
            target.close()
        return {"bundles": url, "database": self.postgres.new()}


Serve = Callable[..., Running]


def _start(
    state: str,
    request: pytest.FixtureRequest,
    folder: Path,
    data_folder: Path,
    settings: dict[str, Any],
    *parts: Any,
) -> Running:
    """A server of a folder; on PostgreSQL and S3 as many as the test's marker ``replicas`` says."""
    if state == "embedded":
        return _run(Settings(folder, data_folder, **settings), *parts)
    fleet = FleetState(request.getfixturevalue("postgres"), request.getfixturevalue("s3"))
    settings = {**settings, **fleet.settings(folder, data_folder / "publisher")}
    marker = request.node.get_closest_marker("replicas")
    count = marker.args[0] if marker is not None else 3 if request.scope == "session" else 1
    jobs = settings.pop("jobs_at_once", 1 if "package_command" in settings else 0)  # of the last one
    places = [(data_folder / str(number), jobs if number + 1 == count else 0) for number in range(count)]
    return Fleet.of(
        [_run(Settings(data_folder=folder, jobs_at_once=jobs, **settings), *parts) for folder, jobs in places]
    )


@pytest.fixture
def serve(tmp_path: Path, state: str, request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Starts servers: ``serve(folder, runtime=…, drain_s=…, now=…, limits=…, **settings)``."""
    with ExitStack() as stack:

        def start(
            folder: Path,
            *,
            runtime: Runtime | None = None,
            drain_s: float = 5.0,
            now: Callable[[], datetime] | None = None,
            limits: Limits | None = None,
            **settings: Any,
        ) -> Running:
            data_folder = settings.pop("data_folder", tmp_path / "data")
            running = _start(state, request, folder, data_folder, settings, runtime, drain_s, now, limits)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture(scope="session")
def server(
    tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, state_of_session: str, request: pytest.FixtureRequest
) -> Iterator[Running]:
    """A server of the tiny bundle that asks for no token and has small limits, for tests that change nothing in it."""
    settings = {
        "max_body_bytes": 500_000,
        "max_json_bytes": 300_000,
        "max_log_body_bytes": 20_000,
        "max_log_line_bytes": 2_000,
    }
    data = tmp_path_factory.mktemp("data")
    running = _start(state_of_session, request, tiny.folder.parent, data, settings, None, 5.0, None)
    yield running
    running.stop()


@dataclass
class GatedRuntime:
    """A runtime whose models wait, once they were asked, until ``gate`` is open. ``started``: as often as they began.

    ``batches``: the rows of each run; ``loads``: how many models were loaded.
    """

    runtime: Runtime
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[int] = field(default_factory=list)
    loads: int = 0
    failure: Exception | None = None

    @property
    def identity(self) -> str:
        return f"gated-{self.runtime.identity}"

    def taking_turns(self):
        return self

    def load(self, stretch: Stretch) -> LoadedStretch:
        self.loads += 1
        return _GatedStretch(self, self.runtime.load(stretch))


@dataclass
class _GatedStretch:
    owner: GatedRuntime
    loaded: LoadedStretch

    def run(self, inputs: list[Array]) -> list[Array]:
        self.owner.batches.append(len(inputs[0]))
        self.owner.started.release()
        if not self.owner.gate.wait(PATIENCE_S):
            raise TimeoutError("the test never opened the gate")
        if self.owner.failure is not None:
            raise self.owner.failure
        return self.loaded.run(inputs)

    def close(self) -> None:
        self.loaded.close()


@pytest.fixture
def gated() -> Iterator[GatedRuntime]:
    """ONNX Runtime behind a closed gate; it is opened when the test ends."""
    runtime = GatedRuntime(OnnxRuntime(threads=1))
    yield runtime
    runtime.gate.set()


@dataclass
class Clock:
    """A clock that only tests move."""

    time: datetime = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def forward(self, **duration: float) -> None:
        self.time += timedelta(**duration)


@pytest.fixture
def clock() -> Clock:
    """A clock that only the test moves."""
    return Clock()


LineBuilder = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def log_line() -> LineBuilder:
    """Makes adaptation log lines: ``log_line(minute, event="adapted", **fields of the event)``."""
    events: dict[str, dict[str, Any]] = {
        "opened": {"subnet": "o0 o1 o2 o3 o4", "restored": False},
        "adapted": {
            "budget_latency_ms": 2.0,
            "budget_memory_mb": None,
            "subnet": "o0 m1-4 o4",
            "predicted_ms": 1.4,
            "measured_ms": 1.5,
            "predicted_peak_bytes": 1000,
            "accuracy_search": 0.9,
            "accuracy_holdout": None,
            "samples": 40,
            "subnets_evaluated": 5,
            "seconds": 1.5,
            "stopped": "exhausted",
        },
    }

    def build(minute: int = 0, event: str = "opened", **fields: Any) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "time": f"2026-05-01T{minute // 60:02d}:{minute % 60:02d}:00.000+00:00",
            "bundle": "0" * 64,
            "runtime": "onnxruntime",
            "event": {"event": event, **events[event], **fields},
        }

    return build


@pytest.fixture(scope="session")
def ndjson() -> Callable[..., bytes]:
    """Lines as a body."""
    return lambda *lines: b"".join(json.dumps(line).encode() + b"\n" for line in lines)

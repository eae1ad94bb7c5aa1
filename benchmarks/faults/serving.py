"""A server for a folder of bundles, in this process or in one of its own, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.tools.forked import Forked
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Runtime
from server.app import create_app
from server.http.request_reader import Limits
from server.http.serving import SPARE_THREADS, HttpServer, listen, url_of
from server.services import Services
from server.settings import Settings

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Reply:
    """Reply of a server; the names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(
    address: tuple[str, int],
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    source: str = "127.0.0.1",
) -> Reply:
    """One request on a connection of its own, from the local address ``source``: servers tell clients apart by it.

    Raises:
        OSError, http.client.HTTPException: there was no reply.
    """
    made = http.client.HTTPConnection(*address, timeout=PATIENCE_S, source_address=(source, 0))
    with contextlib.closing(made) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of the body has come
            connection.request(method, path, body=body, headers=dict(headers or {}))
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


@dataclass(frozen=True)
class Serving:
    """A server that runs in this process."""

    address: tuple[str, int]
    url: str
    services: Services

    def ask(self, path: str, **request: Any) -> Reply:
        """One request: see ``ask``."""
        return ask(self.address, path, **request)


@contextlib.contextmanager
def serving(
    folder: Path, data: Path, *, runtime: Runtime | None = None, limits: Limits | None = None, **settings: Any
) -> Iterator[Serving]:
    """Serve ``folder`` in this process, with the data folder ``data``; ``settings``: see ``Settings``."""
    with listen("127.0.0.1", 0) as listener:
        server, services = _make(folder, data, listener, runtime, limits, settings)
        host, port = listener.getsockname()[:2]
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield Serving((host, port), url_of(listener), services)
        finally:
            server.stop()
            thread.join(PATIENCE_S)
            services.close()


@contextlib.contextmanager
def forked_server(
    folder: Path,
    data: Path,
    *,
    port: int = 0,
    prepare: Callable[[], object] = lambda: None,
    runtime: Runtime | None = None,
    limits: Limits | None = None,
    **settings: Any,
) -> Iterator[ForkedServer]:
    """Serve ``folder`` in a forked child, which ``prepare``s itself first; it is killed at the end."""
    with listen("127.0.0.1", port) as listener:

        def work() -> None:
            server, _ = _make(folder, data, listener, runtime, limits, settings)
            prepare()
            server.run()

        address = listener.getsockname()[:2]
        child = Forked(work)
    with child:
        yield ForkedServer(address, f"http://{address[0]}:{address[1]}", child)


@dataclass(frozen=True)
class ForkedServer:
    """A server in a child of this process."""

    address: tuple[str, int]
    url: str
    child: Forked

    def ask(self, path: str, **request: Any) -> Reply:
        """One request: see ``ask``."""
        return ask(self.address, path, **request)


def _make(
    folder: Path,
    data: Path,
    listener: socket.socket,
    runtime: Runtime | None,
    limits: Limits | None,
    settings: Mapping[str, Any],
) -> tuple[HttpServer, Services]:
    chosen = Settings(folder, data, **({"jobs_at_once": 0, "inference_threads": 1} | dict(settings)))
    engine = runtime or make_runtime("onnxruntime", threads=chosen.inference_threads)
    services = Services(chosen, runtime=engine)
    server = HttpServer(
        create_app(chosen, services=services),
        listener,
        threads=chosen.queue_limit + SPARE_THREADS,
        max_body_bytes=chosen.largest_body_bytes,
        drain_s=2.0,
        limits=limits,
    )
    return server, services

"""Waitress with graceful shutdown: on ``stop`` it finishes requests in flight.

Waitress itself drops requests in flight. The loop below is waitress's, one iteration at a time.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import socket
import threading
import time
from typing import Any

from flask import Flask
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask, WSGITask

from server.errors import ListenError

_log = logging.getLogger(__name__)

SPARE_THREADS = 8  # besides those that wait for inference: for health, bundles, logs
CONNECTION_LIMIT = 300
IDLE_S = 30  # connections idle for longer are closed
_ROUND_S = 1.0
_DRAIN_ROUND_S = 0.05


class _DrainingTask(WSGITask):
    """Sends ``Connection: close`` once the server drains."""

    def build_response_header(self) -> bytes:
        if self.channel.server.draining:
            self.set_close_on_finish()
        return bytes(super().build_response_header())


class _JsonErrorTask(ErrorTask):
    """Waitress's own error replies, in JSON like all other errors."""

    def execute(self) -> None:
        error = self.request.error
        body = json.dumps({"error": f"{error.reason}: {error.body}"}).encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    task_class = _DrainingTask
    error_task_class = _JsonErrorTask

    @property
    def idle(self) -> bool:
        """Whether no request is being received, processed or answered."""
        return not self.requests and self.request is None and not self.total_outbufs_len


class HttpServer:
    """Serves ``app`` on the socket ``listener``, from ``run`` until ``stop``.

    ``threads``: maximum concurrent requests, more than inference can block. Bodies above twice ``max_body_bytes`` are
    refused unread. Smaller ones are read, so that clients receive the application's error reply.
    """

    def __init__(
        self, app: Flask, listener: socket.socket, *, threads: int, max_body_bytes: int, drain_s: float
    ) -> None:
        self._listener = listener
        self._drain_s = drain_s
        self._stopping = threading.Event()
        self._map: dict[int, Any] = {}
        self._server = create_server(
            app,
            map=self._map,
            sockets=[listener],
            threads=threads,
            max_request_body_size=2 * max_body_bytes,
            connection_limit=CONNECTION_LIMIT,
            channel_timeout=IDLE_S,
            cleanup_interval=5,
            asyncore_use_poll=True,
            ident=None,
        )
        # Silences a warning for every request that finds all threads busy; the inference queue limits requests.
        self._server.task_dispatcher.queue_logger = logging.getLogger(f"{__name__}.threads")
        self._server.task_dispatcher.queue_logger.setLevel(logging.ERROR)
        self._server.channel_class = _Channel
        self._server.draining = False

    def run(self) -> None:
        """Serve until ``stop``, then finish requests in flight, for at most ``drain_s`` seconds."""
        while not self._stopping.is_set():
            self._round(_ROUND_S)
        self._drain()
        self._server.task_dispatcher.shutdown(timeout=1)
        self._server.trigger.close()
        wasyncore.close_all(self._map)

    def stop(self) -> None:
        """End ``run``. Idempotent; safe in any thread and in signal handlers."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # already ended
            self._server.pull_trigger()

    def _round(self, timeout_s: float) -> None:
        wasyncore.loop(timeout=timeout_s, use_poll=True, map=self._map, count=1)

    def _drain(self) -> None:
        """1. stop listening; 2. close idle connections; 3. close the others, each after its reply."""
        self._server.draining = True
        wasyncore.dispatcher.close(self._server)  # only the listening socket, unlike BaseWSGIServer.close
        channels = self._server.active_channels
        deadline = time.monotonic() + self._drain_s
        while channels and time.monotonic() < deadline:
            for channel in list(channels.values()):
                if channel.idle:
                    channel.will_close = True
            self._round(_DRAIN_ROUND_S)
        if channels:
            _log.warning("%d requests were not finished within %g s", len(channels), self._drain_s)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to ``host`` and ``port``; 0 selects a free port.

    Raises:
        ListenError: no such local address, or the port is in use or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()  # fails only now if another server uses the port
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="choose another with --port, or --port 0 for any that is free",
        ) from error
    return listener


def only_loopback(listener: socket.socket) -> bool:
    """Whether ``listener`` is only reachable from this machine."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

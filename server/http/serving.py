"""Waitress with limits per client, and graceful shutdown.

Waitress itself drops requests in flight when it ends, and slow clients can take all its connections and threads. The
loop below is waitress's, one round at a time; polling, connections and threads are our own. Threads are in lanes:
requests of one kind never wait for a thread that another kind holds.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from server.errors import ListenError
from server.http.connections import Connection, address_group, working_for
from server.http.polling import Polling
from server.http.request_reader import AdmitBody, Limits

_log = logging.getLogger(__name__)

ADMIT_BODY = "pathweave.admit_body"  # keys in the extensions of the application: an AdmitBody
LANE_OF = "pathweave.lane_of"  # and a function: the lane of a method and a path
SPARE_THREADS = 8  # besides those for inference: for bundles, jobs, logs, the page
_QUICK_THREADS = 2
_REFUSING_THREADS = 2  # tell further infer requests that inference is full
_ROUND_S = 1.0
_DRAIN_ROUND_S = 0.05
_ACCEPTS_PER_ROUND = 64
_LAST_ACCEPTS = 4  # rounds: more than wait at most
_RECEIVE_BYTES = 64 * 1024


class Lane(enum.Enum):
    """The kinds of requests. A route declares its own; requests that were refused at the head are quick."""

    QUICK = enum.auto()  # no work, no lock, no disk
    INFERENCE = enum.auto()
    DELIVERY = enum.auto()  # bundles and blobs
    OTHER = enum.auto()  # jobs, logs, profiles, the page


class LaneDispatcher:
    """A dispatcher for waitress with a pool of threads per lane.

    ``threads``: the size of each; ``lane_of``: of a request, by method and path.
    """

    def __init__(self, threads: Mapping[Lane, int], lane_of: Callable[[str, str], Lane]) -> None:
        self._lane_of = lane_of
        self._pools = {lane: ThreadedTaskDispatcher() for lane in Lane}
        for lane, pool in self._pools.items():
            # Silences a warning for every request that finds all threads busy; queues are bounded by the connections.
            pool.queue_logger = logging.getLogger(f"{__name__}.waiting")
            pool.queue_logger.setLevel(logging.ERROR)
            pool.set_thread_count(threads[lane])

    def add_task(self, connection: Any) -> None:
        """Queue the first request of ``connection``."""
        request = connection.requests[0]
        lane = Lane.QUICK if request.error is not None else self._lane_of(request.command, request.path)
        self._pools[lane].add_task(connection)

    def shutdown(self, *, timeout: float) -> None:
        """End all threads; wait for those that work for ``timeout`` seconds in all."""
        for pool in self._pools.values():
            pool.set_thread_count(0)
        for pool in self._pools.values():
            pool.shutdown(timeout=timeout / len(self._pools))


class _Server(TcpWSGIServer):
    """Accepts connections within ``limits``: at the limit, a new one takes the place of the one that stands longest."""

    channel_class = Connection

    def __init__(self, app: Flask, listener: socket.socket, *, limits: Limits, **options: Any) -> None:
        self.limits = limits
        self.draining = False
        self.admit: AdmitBody | None = app.extensions.get(ADMIT_BODY)
        self._by_group: Counter[str] = Counter()
        sockinfo = (listener.family, listener.type, listener.proto, listener.getsockname())
        super().__init__(app, _sock=listener, sockinfo=sockinfo, bind_socket=False, **options)
        self.polling = Polling(self._map)
        self.polling.note_all()  # the listener and the trigger

    def pull_trigger(self) -> None:
        """Wake the loop for the connection that this thread works for. Safe in any thread."""
        descriptor = working_for()
        if descriptor is not None:
            self.polling.note(descriptor)
        super().pull_trigger()

    def readable(self) -> bool:
        """True if connections are accepted; unlike waitress's, at any number of them."""
        return bool(self.accepting)

    def handle_accept(self) -> None:
        """Accept the connections that wait, up to a number per round."""
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                accepted = self.accept()
                if accepted is None:
                    return
                connection, address = accepted
                self.set_socket_options(connection)
            except OSError:  # out of file descriptors, or the client has gone again
                return
            if self._make_room(self.group(address)):
                self._by_group[self.group(address)] += 1
                self.polling.note(connection.fileno())
                self.channel_class(self, connection, address, self.adj, map=self._map)
            else:
                connection.close()

    def group(self, address: Any) -> str:
        """Group of addresses that counts as one client for the limit of connections."""
        return address_group(str(address[0]))

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is over from the counts."""
        group = self.group(connection.addr)
        self._by_group[group] -= 1
        if self._by_group[group] <= 0:
            del self._by_group[group]

    def check_deadlines(self) -> None:
        """Close connections that are overdue."""
        now_s = time.monotonic()
        for connection in list(self.active_channels.values()):
            connection.check_deadlines(now_s, self.limits)
        self.polling.note_all()

    def _make_room(self, group: str) -> bool:
        """Make room for a connection of ``group``: at the limits, close another one; False if none can be closed."""
        if self._by_group[group] >= self.limits.connections_per_address:
            crowded = group
        elif len(self.active_channels) >= self.limits.connections:
            [(crowded, _)] = self._by_group.most_common(1)
        else:
            return True
        standing = [
            (since, id(connection), connection)
            for connection in self.active_channels.values()
            if self.group(connection.addr) == crowded and (since := connection.stands_since_s) is not None
        ]
        if not standing:
            return False
        min(standing)[2].handle_close()
        return True


class HttpServer:
    """Serves ``app`` on the socket ``listener``, from ``run`` until ``stop``.

    ``threads``: for inference and SPARE_THREADS more. Bodies above twice ``max_body_bytes`` are refused unread. Smaller
    ones are read, so that clients receive the application's error reply.
    """

    def __init__(
        self,
        app: Flask,
        listener: socket.socket,
        *,
        threads: int,
        max_body_bytes: int,
        drain_s: float,
        limits: Limits | None = None,
    ) -> None:
        self._drain_s = drain_s
        self._stopping = threading.Event()
        self._map: dict[int, Any] = {}
        self._limits = limits or Limits()
        self._lanes = LaneDispatcher(
            {
                Lane.QUICK: _QUICK_THREADS,
                Lane.INFERENCE: max(1, threads - SPARE_THREADS) + _REFUSING_THREADS,
                Lane.DELIVERY: SPARE_THREADS // 2,
                Lane.OTHER: SPARE_THREADS // 2,
            },
            app.extensions.get(LANE_OF, lambda method, path: Lane.OTHER),
        )
        adjustments = Adjustments(
            sockets=[listener],
            max_request_body_size=2 * max_body_bytes,
            max_request_header_size=self._limits.head_bytes,
            recv_bytes=_RECEIVE_BYTES,
            ident=None,
        )
        self._server = _Server(
            app, listener, limits=self._limits, map=self._map, dispatcher=self._lanes, adj=adjustments
        )

    def run(self) -> None:
        """Serve until ``stop``, then finish requests in flight, for at most ``drain_s`` seconds."""
        round_s = min(_ROUND_S, self._limits.head_s / 4)
        checked_s = time.monotonic()
        while not self._stopping.is_set():
            self._round(round_s)
            if time.monotonic() - checked_s >= round_s:
                self._server.check_deadlines()
                checked_s = time.monotonic()
        self._drain()
        self._lanes.shutdown(timeout=1)
        self._server.trigger.close()
        wasyncore.close_all(self._map)

    def stop(self) -> None:
        """End ``run``. Idempotent; safe in any thread and in signal handlers."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # already ended
            self._server.pull_trigger()

    def _round(self, timeout_s: float) -> None:
        self._server.polling.round(timeout_s)

    def _drain(self) -> None:
        """1. accept what waits, stop listening; 2. close idle connections; 3. close the others after their reply."""
        self._server.draining = True
        for _ in range(_LAST_ACCEPTS):  # closing the socket would reset connections that wait
            self._server.handle_accept()
        wasyncore.dispatcher.close(self._server)  # only the listening socket, unlike BaseWSGIServer.close
        self._round(0.0)  # takes what they have sent
        channels = self._server.active_channels
        deadline = time.monotonic() + self._drain_s
        while channels and time.monotonic() < deadline:
            for channel in list(channels.values()):
                if channel.idle:
                    channel.will_close = True
            self._server.polling.note_all()
            self._round(_DRAIN_ROUND_S)
            self._server.check_deadlines()
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
    """True if ``listener`` is only reachable from this machine."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

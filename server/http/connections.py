"""One client's connection: waitress's channel with deadlines, a check at the head, and one request at a time."""

from __future__ import annotations

import contextlib
import http
import ipaddress
import json
import socket
import threading
import time
from typing import Any

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from device_sdk.errors import PathweaveError
from server.http.memory_budget import RESERVATION
from server.http.replies import described
from server.http.request_reader import Limits, RequestReader, SlowRequestError

RECEIVED_S = "pathweave.received_s"  # keys in a WSGI environment: when the request was complete, on the monotonic clock
CLIENT_GONE = "pathweave.client_gone"  # and a function: whether the client has closed its connection

_LINGER_S = 1.0  # and bytes, for which the rest of a refused body is dropped before the connection is closed
_LINGER_BYTES = 4 << 20
_TURN_BYTES = 1 << 20  # sent at once, before other connections have their turn


_working = threading.local()


def working_for() -> int | None:
    """The file descriptor of the connection that this thread answers; None if it answers none."""
    descriptor: int | None = getattr(_working, "descriptor", None)
    return descriptor


class _Task(WSGITask):
    """Passes connection data to the application, and ends the connection while the server drains."""

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[RESERVATION] = self.request.reservation
        environ[RECEIVED_S] = self.request.received_s
        environ[CLIENT_GONE] = self.channel.client_gone
        return environ

    def build_response_header(self) -> bytes:
        if self.channel.server.draining:
            self.set_close_on_finish()
        return bytes(super().build_response_header())


class _RefusalTask(ErrorTask):
    """Replies of the connection layer, in JSON like all other errors."""

    def execute(self) -> None:
        error = self.request.error
        if isinstance(error, PathweaveError):
            code, text, _, headers = described(error)
        else:  # waitress's own
            code, text, headers = error.code, f"{error.reason}: {error.body}", {}
        body = json.dumps({"error": " ".join(text.split())}).encode()
        self.status = f"{code} {http.HTTPStatus(code).phrase}"
        self.response_headers += [("Content-Type", "application/json"), *headers.items()]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class Connection(HTTPChannel):
    """A connection that receives, processes and answers one request at a time."""

    task_class = _Task
    error_task_class = _RefusalTask
    request: RequestReader | None = None
    sent_continue: bool = False

    def __init__(self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None) -> None:
        self._waiting_since_s = time.monotonic()
        self._answered = False
        self._reply_mark: tuple[float, int] | None = None  # when a reply began to leave, bytes sent by then
        self._sent_bytes = 0
        self._turn_bytes = 0
        self._refuses_body = False
        self._lingers_until_s: float | None = None
        self._dropped_bytes = 0
        self._ahead = b""  # what came behind a request that is being answered: one read from the socket at most
        super().__init__(server, sock, addr, adj, map=map)

    @property
    def idle(self) -> bool:
        """True if no request is being received, processed or answered."""
        return not self.requests and self.request is None and not self._ahead and not self.total_outbufs_len

    @property
    def stands_since_s(self) -> tuple[bool, float] | None:
        """The order in which connections make room for new ones, least first; None while a thread works for it."""
        return None if self.requests else (bool(self.total_outbufs_len), self._waiting_since_s)

    def client_gone(self) -> bool:
        """True if the client has closed its connection, or its side of it."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def received(self, data: bytes) -> bool:
        """Take ``data`` from the socket. Bytes behind a whole request wait until that is answered."""
        with self.requests_lock:
            if not data or self.will_close or self.close_when_flushed:
                return False
            if self.request is None:
                data = data.lstrip(b"\r\n")  # some clients end a body with a line break
                if not data:
                    return True
                self.request = RequestReader(self.adj, admit=self.server.admit, address=self.server.group(self.addr))
            request = self.request
            while data and not request.completed:
                data = data[request.received(data) :]
                if request.expect_continue and request.headers_finished and not self.sent_continue:
                    self.send_continue()
            if request.completed:
                self.sent_continue = False
                self.request = None
                self._ahead = data
                self._hand_over(request)
        return True

    def service(self) -> None:
        """Answer the request; called by a thread of the server."""
        _working.descriptor = self._fileno
        try:
            super().service()
        finally:
            _working.descriptor = None
        self._answered = True
        self._waiting_since_s = time.monotonic()

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send a part of ``data``; nothing if this connection's turn is used up."""
        if self._turn_bytes >= _TURN_BYTES:
            return 0
        sent = int(super().send(data, do_close=do_close))
        self._turn_bytes += sent
        self._sent_bytes += sent
        return sent

    def handle_write(self) -> None:
        """Send as much as the socket takes, up to a turn's share."""
        self._turn_bytes = 0
        if self._refuses_body and self.close_when_flushed and not self.will_close:
            self._flush_exception(self._flush_some)
            if not self.total_outbufs_len and not self.will_close:
                self._linger()
        else:
            super().handle_write()
        if not self.total_outbufs_len:
            self._reply_mark = None

    def readable(self) -> bool:
        """True if the connection takes bytes from the client.

        The thread of all sockets calls this before it waits. The next request is begun here, once the reply to the last
        one has left: a client that reads no replies holds no thread.
        """
        if self._lingers_until_s is not None:
            return True
        if self._ahead and super().readable():
            ahead, self._ahead = self._ahead, b""
            self.received(ahead)
        return bool(super().readable())

    def handle_read(self) -> None:
        """Take bytes from the socket; drop them if they belong to a refused body."""
        try:
            data = self.recv(self.adj.recv_bytes)  # closes the connection if the client has
        except BlockingIOError:  # the event was for an earlier connection of the same number
            return
        except OSError:
            self.handle_close()
            return
        if self._lingers_until_s is None:
            self.received(data)
            return
        self._dropped_bytes += len(data)
        if self._dropped_bytes > _LINGER_BYTES:
            self.handle_close()

    def write_soon(self, data: Any) -> int:
        """Queue ``data``, and send as much as the socket takes, up to a turn's share."""
        self._turn_bytes = 0
        return int(super().write_soon(data))

    def check_deadlines(self, now_s: float, limits: Limits) -> None:
        """Refuse the request or close the connection if it is overdue. Called by the thread that serves all sockets."""
        if self._lingers_until_s is not None:
            if now_s > self._lingers_until_s:
                self.handle_close()
        elif self.total_outbufs_len:
            if self._reply_late(now_s, limits):
                self.handle_close()
        elif self.requests:
            return
        elif self.request is None:
            if now_s - self._waiting_since_s > (limits.idle_s if self._answered else limits.head_s):
                self.handle_close()
        elif self.request.late(now_s, limits):
            with self.requests_lock:
                request, self.request = self.request, None
                request.refuse(SlowRequestError("the request arrives too slowly"))
                self._hand_over(request)

    def handle_close(self) -> None:
        """Close the connection, and free the data it received."""
        super().handle_close()
        request, self.request = self.request, None
        if request is not None:
            request.close()

    def del_channel(self, map: Any = None) -> None:
        """Tell the server that the connection is over."""
        was_open = self._fileno is not None
        super().del_channel(map)
        if was_open:
            self.server.forget(self)

    def _hand_over(self, request: RequestReader) -> None:
        if request.empty:
            return
        self._refuses_body = request.error is not None
        self.requests.append(request)
        self.server.add_task(self)

    def _linger(self) -> None:
        """Drop bytes that still arrive: closing at once would reset the connection before it reads the refusal."""
        self.close_when_flushed = False
        self._lingers_until_s = time.monotonic() + _LINGER_S
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def _reply_late(self, now_s: float, limits: Limits) -> bool:
        if self._reply_mark is None:
            self._reply_mark = now_s, self._sent_bytes
        began_s, sent_bytes = self._reply_mark
        counted_s = now_s - began_s - limits.grace_s
        return self._sent_bytes - sent_bytes < counted_s * limits.min_bytes_per_s


def address_group(address: str) -> str:
    """Group of addresses that count as one client: the IPv4 address itself, or the /64 network of an IPv6 address."""
    parsed = parsed_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address, without its zone, as IPv4 if it stands for one; None if it is another text."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed

"""HTTP/1.1 over urllib3: pooled connections, deadlines enforced on every read and write, bounded bodies."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3
from urllib3 import exceptions as urllib3_errors

from device_sdk.errors import DeadlineError, ProtocolError, TransferError, UsageError
from device_sdk.transports.port import Clock, Deadlines
from device_sdk.transports.port import origin as origin_of

CHUNK_BYTES = 65_536
POOLED_CONNECTIONS = 8  # per origin


class HttpTransport:
    """Sends requests over http and https. Certificates are verified, redirects are not followed.

    ``token`` is sent as a bearer token to ``origin`` only. The system's resolver, not the deadlines, bounds name
    lookup. A request that fails because the server closed a pooled connection is repeated on another one: all requests
    are idempotent.
    """

    def __init__(self, *, token: str | None = None, origin: str | None = None, clock: Clock = time.monotonic) -> None:
        if token is not None and origin is None:
            raise UsageError("a token needs the address of its server")
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token and token):
            raise UsageError("the token is empty or has a space or a character that is not printable ASCII")
        self._token = token
        self._origin = None if origin is None else origin_of(origin)
        self._clock = clock
        self._manager = urllib3.PoolManager(maxsize=POOLED_CONNECTIONS, retries=False)
        self._manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadlines: Deadlines,
        max_bytes: int,
    ) -> Iterator[HttpReply]:
        """See the port."""
        server = origin_of(url)
        patience = _Patience(deadlines, self._clock)
        with _our_errors(server):
            response = self._response(method, url, self._headers(server, headers), body, patience)
        try:
            yield HttpReply(response, server=server, max_bytes=max_bytes)
        finally:
            response.close()  # a fully read response has returned its connection to the pool already

    def _response(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, patience: _Patience
    ) -> urllib3.BaseHTTPResponse:
        for _ in range(POOLED_CONNECTIONS):
            try:
                return self._urlopen(method, url, headers, body, patience)
            except urllib3_errors.ProtocolError as error:
                if patience.connected or not isinstance(_chain(error)[-1], ConnectionError):
                    raise
        return self._urlopen(method, url, headers, body, patience)

    def _urlopen(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, patience: _Patience
    ) -> urllib3.BaseHTTPResponse:
        _sending.patience = patience
        left_s = patience.left_s()
        return self._manager.urlopen(
            method,
            url,
            body=body,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=left_s, read=left_s),
        )

    def _headers(self, server: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        complete = {"User-Agent": "pathweave", "Accept-Encoding": "gzip", **(headers or {})}
        if self._token is not None and server == self._origin:
            complete["Authorization"] = f"Bearer {self._token}"
        return complete

    def close(self) -> None:
        """Drop idle connections. Idempotent."""
        self._manager.clear()


class HttpReply:
    """A response whose head has arrived; see the port."""

    def __init__(self, response: urllib3.BaseHTTPResponse, *, server: str, max_bytes: int) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._server = server
        self._max_bytes = max_bytes

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives; see the port."""
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding == "identity":
            announced = self.headers.get("content-length", "")
            if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
                raise self._too_long()
            chunks = self._raw_chunks()
        elif encoding in ("gzip", "deflate"):
            chunks = self._decompressed()
        else:
            raise ProtocolError(f"{self._server} sent an unsupported content encoding {encoding[:40]!r}")
        received = 0
        for chunk in chunks:
            received += len(chunk)
            if received > self._max_bytes:
                raise self._too_long()
            yield chunk

    def _raw_chunks(self) -> Iterator[bytes]:
        with _our_errors(self._server):
            while chunk := self._response.read1(CHUNK_BYTES, decode_content=False):
                yield chunk

    def _decompressed(self) -> Iterator[bytes]:
        """Decompress in bounded chunks, so that a decompression bomb is not expanded in memory."""
        decoder = zlib.decompressobj(wbits=47)  # 15 + 32: a gzip or a zlib header
        try:
            for packed in self._raw_chunks():
                while packed and not decoder.eof:
                    if chunk := decoder.decompress(packed, CHUNK_BYTES):
                        yield chunk
                    packed = decoder.unconsumed_tail
                if decoder.unused_data or packed:
                    raise ProtocolError(f"{self._server} sent bytes after the end of a compressed body")
        except zlib.error as error:
            raise ProtocolError(f"{self._server} sent a compressed body that is damaged") from error
        if not decoder.eof:
            raise TransferError(f"the compressed body from {self._server} was cut short")

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"{self._server} sent more than the {self._max_bytes} bytes allowed")


class _Patience:
    """Remaining time of one request. ``connected``: it opened a new connection instead of using a pooled one."""

    def __init__(self, deadlines: Deadlines, clock: Clock) -> None:
        self.connected = False
        self._idle_s = deadlines.idle_s
        self._ends_at_s = clock() + deadlines.total_s
        self._clock = clock

    def left_s(self) -> float:
        """Time-out of the next read or write, in seconds. Raises TimeoutError past the total deadline."""
        left_s = min(self._idle_s, self._ends_at_s - self._clock())
        if left_s <= 0:
            raise TimeoutError("the total deadline passed")
        return left_s


class _Sending(threading.local):
    """The current request of this thread. urllib3 has no way to pass it down to the connection."""

    patience: _Patience


_sending = _Sending()


class _PatientFile(io.RawIOBase):
    """Reads a socket with the remaining time as time-out, also while headers and chunk sizes trickle in."""

    def __init__(self, raw: Any, sock: socket.socket, patience: _Patience) -> None:
        self._raw = raw
        self._sock = sock
        self._patience = patience

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._patience.left_s())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _PatientResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **settings: Any) -> None:
        super().__init__(sock, *arguments, **settings)
        self.fp = io.BufferedReader(_PatientFile(self.fp.detach(), sock, _sending.patience))


class _PatientSending:
    """Sends in chunks, each with the remaining time as time-out, so that a slow connection does not count as idle."""

    sock: socket.socket | None

    def connect(self) -> None:
        _sending.patience.connected = True
        super().connect()  # type: ignore[misc]

    def send(self, data: Any) -> None:  # bytes: nothing else is sent here
        for start in range(0, len(data), CHUNK_BYTES):
            if self.sock is not None:
                self.sock.settimeout(_sending.patience.left_s())
            super().send(data[start : start + CHUNK_BYTES])  # type: ignore[misc]


class _HttpConnection(_PatientSending, urllib3.connection.HTTPConnection):
    response_class = _PatientResponse


class _HttpsConnection(_PatientSending, urllib3.connection.HTTPSConnection):
    response_class = _PatientResponse


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


@contextlib.contextmanager
def _our_errors(server: str) -> Iterator[None]:
    """Translate exceptions of urllib3 and of sockets into this SDK's errors."""
    try:
        yield
    except (urllib3_errors.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        raise _translated(error, server) from error


def _translated(error: BaseException, server: str) -> TransferError:
    chain = _chain(error)
    root = chain[-1]
    reason = getattr(root, "strerror", None) or str(root) or type(root).__name__
    reason = " ".join(reason.split())[:200]
    unreachable = any(
        isinstance(link, urllib3_errors.NewConnectionError) for link in chain
    )  # a kind of time-out in urllib3
    if any(isinstance(link, (TimeoutError, urllib3_errors.TimeoutError)) for link in chain) and not unreachable:
        return DeadlineError(f"{server} was too slow", hint="try again, or allow more time")
    if unreachable:
        return TransferError(f"no connection to {server}: {reason}", hint="check the address and whether it runs")
    if any(isinstance(link, urllib3_errors.SSLError) for link in chain):
        return TransferError(
            f"no secure connection to {server}: {reason}",
            hint="SSL_CERT_FILE names the certificates of a private authority",
        )
    cut = (http.client.RemoteDisconnected, http.client.IncompleteRead, urllib3_errors.IncompleteRead)
    if isinstance(root, (http.client.HTTPException, urllib3_errors.InvalidHeader)) and not isinstance(root, cut):
        return ProtocolError(f"{server} does not answer as HTTP: {reason}")
    return TransferError(f"the connection to {server} was cut: {reason}")


def _chain(error: BaseException) -> list[BaseException]:
    """``error`` and its causes, outermost first."""
    chain = [error]
    for _ in range(8):
        inside = [argument for argument in chain[-1].args if isinstance(argument, BaseException)]
        cause = inside[0] if inside else chain[-1].__cause__
        if cause is None or cause in chain:
            break
        chain.append(cause)
    return chain

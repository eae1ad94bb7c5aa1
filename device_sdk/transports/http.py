"""HTTP/1.1 over urllib3: pooled connections, both deadlines kept on every byte, bodies bounded."""

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
from urllib3 import exceptions as theirs

from device_sdk.errors import DeadlineError, ProtocolError, TransferError, UsageError
from device_sdk.transports import addresses
from device_sdk.transports.port import Clock, Deadlines

CHUNK_BYTES = 65_536
POOLED_CONNECTIONS = 8  # per origin


class HttpTransport:
    """Sends requests over http and https. Certificates are verified, redirects are not followed.

    ``token`` goes as bearer token to ``origin``, the server it was given for, and to no other. Looking up a host's name
    is the system's business and bounded by its resolver, not by the deadlines. A request that meets a pooled connection
    which the server has just closed is sent again on another one: all requests of ours may be repeated.
    """

    def __init__(self, *, token: str | None = None, origin: str | None = None, clock: Clock = time.monotonic) -> None:
        if token is not None and origin is None:
            raise UsageError("a token needs the address of the server that it is for")
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token and token):
            raise UsageError("the token has characters that a token cannot have")
        self._token = token
        self._origin = None if origin is None else addresses.origin(origin)
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
        """Send one request, as the port says."""
        server = addresses.origin(url)
        patience = _Patience(deadlines, self._clock)
        with _our_errors(server):
            response = self._response(method, url, self._headers(server, headers), body, patience)
        try:
            yield HttpReply(response, server=server, max_bytes=max_bytes)
        finally:
            response.close()  # a connection whose reply was read whole is back in the pool already

    def _response(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, patience: _Patience
    ) -> urllib3.BaseHTTPResponse:
        for _ in range(POOLED_CONNECTIONS):
            try:
                return self._urlopen(method, url, headers, body, patience)
            except theirs.ProtocolError as error:
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
        """Drop idle connections. May be called twice."""
        self._manager.clear()


class HttpReply:
    """An answer whose head has arrived (the port says what it has)."""

    def __init__(self, response: urllib3.BaseHTTPResponse, *, server: str, max_bytes: int) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._server = server
        self._max_bytes = max_bytes

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, as the port says."""
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding == "identity":
            announced = self.headers.get("content-length", "")
            if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
                raise self._too_long()
            pieces = self._pieces()
        elif encoding in ("gzip", "deflate"):
            pieces = self._unzipped()
        else:
            raise ProtocolError(f"{self._server} sent a body encoded as {encoding[:40]!r}, which nobody asked for")
        received = 0
        for piece in pieces:
            received += len(piece)
            if received > self._max_bytes:
                raise self._too_long()
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        with _our_errors(self._server):
            while piece := self._response.read1(CHUNK_BYTES, decode_content=False):
                yield piece

    def _unzipped(self) -> Iterator[bytes]:
        """Unpacked in bounded pieces: what a few bytes blow up to is never held as a whole."""
        decoder = zlib.decompressobj(wbits=47)  # 15 + 32: a gzip or a zlib header
        try:
            for packed in self._pieces():
                while packed and not decoder.eof:
                    if piece := decoder.decompress(packed, CHUNK_BYTES):
                        yield piece
                    packed = decoder.unconsumed_tail
                if decoder.unused_data or packed:
                    raise ProtocolError(f"{self._server} sent bytes after the end of a packed body")
        except zlib.error as error:
            raise ProtocolError(f"{self._server} sent a packed body that does not unpack") from error
        if not decoder.eof:
            raise TransferError(f"the packed body from {self._server} was cut short")

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"{self._server} sent more than the {self._max_bytes} bytes that fit here")


class _Patience:
    """How long one request may still take. ``connected``: it has a connection of its own, not one from the pool."""

    def __init__(self, deadlines: Deadlines, clock: Clock) -> None:
        self.connected = False
        self._idle_s = deadlines.idle_s
        self._ends_at_s = clock() + deadlines.total_s
        self._clock = clock

    def left_s(self) -> float:
        """Seconds until the next byte must be there; TimeoutError if the request should be over."""
        left_s = min(self._idle_s, self._ends_at_s - self._clock())
        if left_s <= 0:
            raise TimeoutError("not everything came in time")
        return left_s


class _Sending(threading.local):
    """The request that this thread is sending. urllib3 offers no way to hand it down to the connection."""

    patience: _Patience


_sending = _Sending()


class _PatientFile(io.RawIOBase):
    """Reads a socket, each time with what is left of the patience: heads and chunk sizes may drip as well as bodies."""

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
    """Sends with what is left of the patience for every piece: a slow line is not an idle one."""

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
    """Turn what urllib3 and the sockets below it raise into ours."""
    try:
        yield
    except (theirs.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        raise _translated(error, server) from error


def _translated(error: BaseException, server: str) -> TransferError:
    chain = _chain(error)
    root = chain[-1]
    reason = getattr(root, "strerror", None) or str(root) or type(root).__name__
    reason = " ".join(reason.split())[:200]
    unreachable = any(isinstance(one, theirs.NewConnectionError) for one in chain)  # for urllib3 a kind of time-out
    if any(isinstance(one, (TimeoutError, theirs.TimeoutError)) for one in chain) and not unreachable:
        return DeadlineError(f"{server} was too slow", hint="try again, or allow more time")
    if unreachable:
        return TransferError(f"no connection to {server}: {reason}", hint="check the address and whether it runs")
    if any(isinstance(one, theirs.SSLError) for one in chain):
        return TransferError(
            f"no safe connection to {server}: {reason}",
            hint="SSL_CERT_FILE names the certificates of a private authority",
        )
    cut = (http.client.RemoteDisconnected, http.client.IncompleteRead, theirs.IncompleteRead)
    if isinstance(root, (http.client.HTTPException, theirs.InvalidHeader)) and not isinstance(root, cut):
        return ProtocolError(f"{server} does not answer as HTTP: {reason}")
    return TransferError(f"the connection to {server} was cut: {reason}")


def _chain(error: BaseException) -> list[BaseException]:
    """``error`` and what it was made of, outermost first."""
    chain = [error]
    for _ in range(8):
        inside = [one for one in chain[-1].args if isinstance(one, BaseException)]
        cause = inside[0] if inside else chain[-1].__cause__
        if cause is None or cause in chain:
            break
        chain.append(cause)
    return chain

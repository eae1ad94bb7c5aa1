"""The decision at a request's head, before any byte of its body is kept: token and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from werkzeug.datastructures import Authorization

from server.access.route import FORM, FindRoute
from server.access.tokens import Gate
from server.errors import TooLargeError
from server.http.memory_budget import MemoryBudget, Reservation

# A body is in memory as received, decompressed, and decoded to tensors or lines.
_COPIES = 3
_KNOWN_S = 1.0  # a token that was valid is not looked up again for so long; the routes check every request themselves
_MAX_KNOWN = 1024


class Admission:
    """Admits the bodies of requests. Called by the thread that serves all sockets."""

    def __init__(
        self,
        gate: Gate,
        find_route: FindRoute,
        *,
        memory: MemoryBudget,
        uploads: MemoryBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gate, self._find_route, self._clock = gate, find_route, clock
        self._memory, self._uploads = memory, uploads
        self._known: dict[str, tuple[str, float]] = {}  # header Authorization -> client, until when

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], *, address: str, body_bytes: int
    ) -> Reservation:
        """Reserve memory for a body. ``headers``: names as in WSGI; ``body_bytes``: 0 if it comes in chunks.

        Raises:
            RequestError: no valid token, or no memory.
            StorageError: the tokens cannot be read.
        """
        authorization = headers.get("AUTHORIZATION", "")
        route = self._find_route(method, path)
        public = route is not None and route.scope is None
        client = address if public else self._client(authorization, address)
        if route is not None and FORM in route.body_types:
            return self._uploads.reserve(client, body_bytes)
        compressed = headers.get("CONTENT_ENCODING", "identity").strip().lower() not in ("", "identity")
        try:
            return self._memory.reserve(client, body_bytes, factor=1 if compressed else _COPIES)
        except TooLargeError as error:
            raise TooLargeError(f"the body has {body_bytes} bytes, which is too much for one request") from error

    def _client(self, authorization: str, address: str) -> str:
        now = self._clock()
        client, until = self._known.get(authorization, ("", now))
        if until > now:
            return client
        sent = Authorization.from_header(authorization)
        token = None if sent is None else sent.token if sent.type == "bearer" else sent.password
        client = self._gate.admit(token, address).name
        if authorization:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[authorization] = client, now + _KNOWN_S
        return client

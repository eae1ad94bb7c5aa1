"""The decision at a request's head, before any byte of its body is kept: token and memory."""

from __future__ import annotations

from collections.abc import Mapping

from werkzeug.datastructures import Authorization

from server.access.recent import RecentDecisions
from server.access.route import FORM, FindRoute
from server.errors import TooLargeError
from server.http.memory_budget import MemoryBudget, Reservation

# A body is in memory as received, decompressed, and decoded to tensors or lines.
_COPIES = 3


class Admission:
    """Admits the bodies of requests. Called by the thread that serves all sockets."""

    def __init__(
        self,
        recent: RecentDecisions,
        find_route: FindRoute,
        *,
        memory: MemoryBudget,
        uploads: MemoryBudget,
    ) -> None:
        self._recent, self._find_route = recent, find_route
        self._memory, self._uploads = memory, uploads

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
        sent = Authorization.from_header(authorization)
        token = None if sent is None else sent.token if sent.type == "bearer" else sent.password
        return self._recent.decide(token, address).client.name

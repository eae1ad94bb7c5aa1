"""The transport port: requests to a server, bounded in time and size. Adapters are in this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True)
class Deadlines:
    """Time limits of a transfer: ``idle_s`` without a byte, ``total_s`` altogether."""

    idle_s: float = 10.0
    total_s: float = 600.0


class Reply(Protocol):
    """A response whose head has arrived: ``status``, and ``headers`` with lower-case names."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, decoded by its Content-Encoding, of at most the request's ``max_bytes``.

        Raises:
            DeadlineError: a deadline passed.
            TransferError: the connection was cut before the announced length.
            ProtocolError: the body is longer than allowed.
        """


class Transport(Protocol):
    """Sends requests. Thread-safe."""

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadlines: Deadlines,
        max_bytes: int,
    ) -> AbstractContextManager[Reply]:
        """Send one request. Redirects are not followed; error statuses are returned, not raised.

        Raises:
            TransferError: no connection (DeadlineError: not in time).
        """

    def close(self) -> None:
        """Drop idle connections. Idempotent."""

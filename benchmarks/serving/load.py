"""Closed-loop clients: each sends its next request when the reply to the last one is there."""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np


@dataclass(frozen=True)
class WireRequest:
    """A request as bytes; every client sends the same."""

    url: str
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class LoadResult:
    """Latencies of good replies in ms, the number of other replies, and the duration."""

    latencies_ms: np.ndarray
    failed: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Good replies per second."""
        return len(self.latencies_ms) / self.seconds


def send_load(request: WireRequest, *, clients: int, seconds: float) -> LoadResult:
    """Send ``request`` from so many clients for so long, each over one connection."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    failed = [0] * clients
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        parts = urlsplit(request.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        while (began := time.perf_counter()) < end:
            connection.request("POST", parts.path, body=request.body, headers=request.headers)
            reply = connection.getresponse()
            reply.read()
            if reply.status == 200:
                latencies[number].append((time.perf_counter() - began) * 1e3)
            else:
                failed[number] += 1
        connection.close()

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return LoadResult(np.concatenate([np.array(one) for one in latencies]), sum(failed), time.perf_counter() - began)

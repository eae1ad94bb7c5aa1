"""Inputs of the split decision that come from a server: its profile, and the uplink to it."""

from __future__ import annotations

import time
from urllib.parse import quote

import numpy as np

from device_sdk.errors import ProtocolError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.profiling.profile import Profile
from device_sdk.supernet.cost import Uplink
from device_sdk.transports.addresses import base
from device_sdk.transports.port import Deadlines, Transport
from device_sdk.transports.replies import read_all, require_success

_PROFILE_DEADLINES = Deadlines(idle_s=120.0, total_s=120.0)  # the first request makes the server measure itself
_PROFILE_MAX_BYTES = 16_000_000
_PROBE_DEADLINES = Deadlines(idle_s=30.0, total_s=60.0)
_SMALL, _LARGE = 1, 32_000  # bytes of a probe
_ROUNDS = 9


def server_profile(transport: Transport, server: str, bundle: str) -> Profile:
    """The server's profile of ``bundle``.

    Raises:
        TransferError: the request failed.
    """
    url = f"{base(server)}/v1/bundles/{quote(bundle, safe='')}/profile"
    with transport.send("GET", url, deadlines=_PROFILE_DEADLINES, max_bytes=_PROFILE_MAX_BYTES) as reply:
        require_success(reply, what="the server's profile")
        data = read_all(reply)
    try:
        return decode_json(data, Profile)
    except ValueError as error:
        raise ProtocolError(f"the server's profile: {error}") from error


def probe(transport: Transport, server: str, size_bytes: int, *, timeout_s: float) -> float:
    """Send ``size_bytes`` and have their arrival confirmed; the seconds that it took.

    Raises:
        TransferError: no confirmation in time.
    """
    deadlines = Deadlines(idle_s=timeout_s, total_s=timeout_s)
    return _probe(transport, f"{base(server)}/v1/probe", size_bytes, deadlines)


def measure_uplink(transport: Transport, server: str) -> Uplink:
    """Bandwidth and round-trip time to ``server``, from the medians of probes of two sizes.

    Raises:
        TransferError: a probe failed.
    """
    url = f"{base(server)}/v1/probe"
    _probe(transport, url, _SMALL)  # opens the connection
    small_s = float(np.median([_probe(transport, url, _SMALL) for _ in range(_ROUNDS)]))
    large_s = float(np.median([_probe(transport, url, _LARGE) for _ in range(_ROUNDS)]))
    seconds = max(large_s - small_s, 1e-6)
    return Uplink(mbps=8 * (_LARGE - _SMALL) / seconds / 1e6, round_trip_ms=small_s * 1e3)


def _probe(transport: Transport, url: str, size: int, deadlines: Deadlines = _PROBE_DEADLINES) -> float:
    started = time.perf_counter()
    with transport.send("POST", url, body=bytes(size), deadlines=deadlines, max_bytes=1000) as reply:
        require_success(reply, what="a probe")
        read_all(reply)
    return time.perf_counter() - started

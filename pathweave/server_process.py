"""A server as a process of its own, for the demo and for measurements."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from device_sdk.errors import TransferError
from device_sdk.transports import Deadlines, make_transport
from device_sdk.transports.replies import read_all, require_success

_MAX_BYTES = 1_000_000
_START_S, _STOP_S = 30.0, 15.0


@contextmanager
def running_server(bundles: Path, *, data: Path) -> Iterator[str]:
    """``pathweave serve`` on ``bundles``, as a process of its own that keeps its things in ``data``; yields its URL.

    Raises:
        TransferError: it did not start; says what it said.
    """
    # one thread: more of them wait actively, on the cores that the devices here need too
    options = ["--data", str(data), "--port", "0", "--threads", "1", "--json"]
    command = [sys.executable, "-m", "pathweave", "serve", str(bundles), *options]
    data.mkdir(parents=True, exist_ok=True)
    log = data / "server.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """The first line that the server writes says where it listens."""
    assert process.stdout is not None
    killer = threading.Timer(_START_S, process.kill)
    killer.start()
    line = process.stdout.readline()
    killer.cancel()
    if not line:
        process.wait()
        said = log.read_text(errors="replace").strip().splitlines()
        raise TransferError(f"the server did not start: {said[-1] if said else 'it said nothing'}")
    return str(json.loads(line)["url"])


def log_lines_at(url: str) -> int:
    """How many log lines of all devices the server at ``url`` keeps, as it tells itself.

    Raises:
        TransferError: it does not answer.
    """
    deadlines = Deadlines(idle_s=10, total_s=10)
    with (
        contextlib.closing(make_transport(url)) as transport,
        transport.send("GET", f"{url}/v1/devices", deadlines=deadlines, max_bytes=_MAX_BYTES) as reply,
    ):
        require_success(reply, what="the list of devices")
        devices = json.loads(read_all(reply))["devices"]
    return sum(device["lines"] for device in devices)

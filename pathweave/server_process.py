"""A server in a separate process, for the demo and for benchmarks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from device_sdk.errors import TransferError
from device_sdk.transports import Deadlines, make_transport
from device_sdk.transports.port import read_all, require_success

_MAX_BYTES = 1_000_000
_START_S, _STOP_S = 30.0, 15.0


class ServerProcess:
    """``pathweave serve`` in a separate process; ``url`` is its address.

    Raises:
        TransferError: it did not start; the message has the last line of its log.
    """

    def __init__(self, bundles: Path, *, data: Path, options: Sequence[str] = ("--threads", "1")) -> None:
        always = ["--data", str(data), "--port", "0", "--json"]
        command = [sys.executable, "-m", "pathweave", "serve", str(bundles), *always, *options]
        data.mkdir(parents=True, exist_ok=True)
        log = data / "server.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            self.url = _address(self._process, log)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Let it end what it does, for some seconds. Idempotent."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def running_server(bundles: Path, *, data: Path, options: Sequence[str] = ("--threads", "1")) -> Iterator[str]:
    """Run ``pathweave serve`` on ``bundles`` in a separate process, with data folder ``data``; yields its URL.

    ``options``: further options. By default one thread: more would busy-wait on the cores of simulated devices.

    Raises:
        TransferError: it did not start; the message has the last line of its log.
    """
    server = ServerProcess(bundles, data=data, options=options)
    try:
        yield server.url
    finally:
        server.stop()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """The server's URL, from the first line of its output."""
    assert process.stdout is not None
    killer = threading.Timer(_START_S, process.kill)
    killer.start()
    line = process.stdout.readline()
    killer.cancel()
    if not line:
        process.wait()
        lines = log.read_text(errors="replace").strip().splitlines()
        raise TransferError(f"the server did not start: {lines[-1] if lines else 'its log is empty'}")
    return str(json.loads(line)["url"])


def log_lines_at(url: str) -> int:
    """Total number of log lines that the server at ``url`` has of all devices.

    Raises:
        TransferError: the request failed.
    """
    deadlines = Deadlines(idle_s=10, total_s=10)
    with (
        contextlib.closing(make_transport(url)) as transport,
        transport.send("GET", f"{url}/v1/devices", deadlines=deadlines, max_bytes=_MAX_BYTES) as reply,
    ):
        require_success(reply, what="the list of devices")
        devices = json.loads(read_all(reply))["devices"]
    return sum(device["lines"] for device in devices)

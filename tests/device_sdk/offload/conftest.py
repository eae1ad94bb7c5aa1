"""A misbehaving server in a process of its own (see faulty_server.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

ROOT = Path(__file__).parents[3]


class FaultyServer:
    """``faulty_server.py`` as a process: told how to fail, killed and started again at the same address."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("faulty_server.py")), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def fail(self, fault: str) -> None:
        """Fail in this way from now on, and forget what was asked so far; "" works."""
        reply = urllib3.request("POST", f"{self.url}/control", json={"fault": fault}, timeout=60)
        assert reply.status == 200

    def asked(self) -> list[str]:
        return urllib3.request("GET", f"{self.url}/control", timeout=60).json()["asked"]


@pytest.fixture(scope="session")
def running_server() -> Iterator[FaultyServer]:
    server = FaultyServer()
    yield server
    server.kill()


@pytest.fixture
def faulty_server(running_server: FaultyServer) -> FaultyServer:
    """A server that works until it is told to fail."""
    running_server.fail("")
    return running_server


@pytest.fixture
def mortal_server() -> Iterator[FaultyServer]:
    """A server of the test's own, which it may kill."""
    server = FaultyServer()
    yield server
    server.kill()

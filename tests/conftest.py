"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import device_sdk as device_sdk  # before any test imports onnxruntime: it switches the telemetry off

try:
    import fcntl
except ImportError:  # Windows, where the tests run in one process
    fcntl = None

WORKER = "PYTEST_XDIST_WORKER" in os.environ
if WORKER:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the workers share the cores


class _Turns:
    """Which tests run beside each other: the room is held by one test that is alone, or shared by the others.

    Who waits for the room holds the door, so that no other test enters meanwhile. The two locks are of the user and the
    machine: runs in several checkouts leave each other alone as well.
    """

    def __init__(self) -> None:
        name = Path(tempfile.gettempdir()) / f"pathweave-tests-{os.getuid()}"
        self._door, self._room = name.with_suffix(".door").open("w"), name.with_suffix(".room").open("w")

    @contextmanager
    def turn(self, alone: bool) -> Iterator[None]:
        """Hold the room while a test runs."""
        self._enter(alone)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def _enter(self, alone: bool) -> None:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock ``path`` between processes."""
    if fcntl is None:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_TURNS = _Turns() if WORKER and fcntl is not None else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test that is marked `alone` while no other worker runs one, and the others beside each other.

    Waiting is outside of the timeout of the test.
    """
    if _TURNS is None:
        return (yield)
    with _TURNS.turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(autouse=True)
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptation measures back to back unless a pace is known: with pauses each would take seconds."""
    monkeypatch.setattr("device_sdk.policies.confirmation.DEFAULT_PAUSE_S", 0.0)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Make a folder once for all workers: ``once(name, make)`` calls ``make(folder)``; the others wait for it."""

    def made(name: str, make: Callable[[Path], None]) -> Path:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if WORKER else base) / name
        with _held(folder.with_suffix(".lock")):
            if not folder.exists():
                folder.mkdir()
                make(folder)
                (folder / ".finished").touch()
            elif not (folder / ".finished").exists():
                pytest.fail(f"{name} could not be made by the worker that tried")
        return folder

    return made


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and pretrained weights that lies beside the repository.

    The environment variable PATHWEAVE_SHARED_DATA names another place.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PATHWEAVE_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data folder, which is not at {folder}; set PATHWEAVE_SHARED_DATA")
    return folder

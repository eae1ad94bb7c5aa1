"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

try:
    import fcntl
except ImportError:  # Windows, where the tests run in one process
    fcntl = None

WORKER = "PYTEST_XDIST_WORKER" in os.environ
if WORKER:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the workers share the cores


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test that is marked `alone` while no other worker runs one, and the others beside each other.

    Waiting is outside of the timeout of the test.
    """
    if not WORKER or fcntl is None:
        return (yield)
    with _turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(alone: bool) -> Iterator[None]:
    """Hold the room, shared or alone. A test that waits for it alone holds the door, so that no other enters meanwhile.

    The two locks are of the user and the machine: runs in several checkouts leave each other alone as well.
    """
    name = Path(tempfile.gettempdir()) / f"pathweave-tests-{os.getuid()}"
    with name.with_suffix(".door").open("w") as door, name.with_suffix(".room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)


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

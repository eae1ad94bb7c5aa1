from __future__ import annotations

import threading

import pytest

from device_sdk.errors import StorageError
from device_sdk.files.locks import Lease, exclusive, shared, try_exclusive

pytest.importorskip("fcntl", reason="needs a system with flock")


def test_one_holder_at_a_time(tmp_path):
    with exclusive(tmp_path / "lock"):
        with try_exclusive(tmp_path / "lock") as alone:
            assert not alone
        with pytest.raises(StorageError, match="another process holds"), exclusive(tmp_path / "lock", wait_s=0.0):
            pass
    with try_exclusive(tmp_path / "lock") as alone:
        assert alone


def test_the_next_one_waits_until_the_lock_is_free(tmp_path):
    order, waiting = [], threading.Event()

    def second():
        waiting.set()
        with exclusive(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive(tmp_path / "lock"):
        thread.start()
        waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_several_share_it_and_none_is_alone_then(tmp_path):
    with shared(tmp_path / "lock"), shared(tmp_path / "lock"), try_exclusive(tmp_path / "lock") as alone:
        assert not alone


def test_a_lease_lasts_until_it_is_closed_and_needs_no_file(tmp_path):
    lease = Lease(tmp_path)
    with try_exclusive(tmp_path) as alone:
        assert not alone
    lease.close()
    lease.close()
    with try_exclusive(tmp_path) as alone:
        assert alone
    assert list(tmp_path.iterdir()) == []
    Lease(tmp_path / "missing").close()


def test_a_lock_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot lock"), exclusive(tmp_path / "file" / "lock"):
        pass
    with try_exclusive(tmp_path / "file" / "lock") as alone:
        assert not alone

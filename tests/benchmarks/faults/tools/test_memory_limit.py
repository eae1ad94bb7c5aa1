from __future__ import annotations

import mmap
import os

import pytest

from benchmarks.faults.tools.forked import Forked
from benchmarks.faults.tools.memory_limit import limit_memory
from device_sdk.machine import resident_bytes

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")


def take(size_bytes):
    limit_memory(200_000_000)
    with mmap.mmap(-1, size_bytes) as held:  # the heap may have room from before, which the limit counts already
        for _ in range(size_bytes // 1_000_000):
            held.write(b"x" * 1_000_000)


def test_less_than_the_limit_can_be_taken_and_more_cannot():
    assert Forked(lambda: take(50_000_000)).join(20) == 0
    assert Forked(lambda: take(400_000_000)).join(20) in (1, -9)


def test_what_is_resident_grows_with_what_is_held():
    before = resident_bytes()
    with mmap.mmap(-1, 30_000_000) as held:  # the heap may have room from before
        held.write(b"x" * len(held))
        assert resident_bytes() - before > 20_000_000

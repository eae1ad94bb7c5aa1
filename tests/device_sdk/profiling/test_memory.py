from __future__ import annotations

import numpy as np
import pytest

from device_sdk.machine import resident_bytes
from device_sdk.profiling.stretches import peak_during

MB = 1_000_000


def allocate_and_free() -> int:
    block = np.ones(50 * MB, dtype=np.uint8)
    return block.nbytes


@pytest.fixture
def needs_proc():
    if resident_bytes() is None:
        pytest.skip("this system does not tell a process's memory")


def test_a_peak_is_seen_even_if_it_is_over_when_the_work_ends(needs_proc):
    for _ in range(2):  # an earlier peak does not hide a later one
        result, peak = peak_during(allocate_and_free)
        assert result == 50 * MB
        assert peak == pytest.approx(50 * MB, rel=0.2)


def test_work_that_takes_nothing_has_next_to_no_peak(needs_proc):
    np.ones(50 * MB, dtype=np.uint8)
    assert peak_during(lambda: None)[1] < 5 * MB


def test_an_error_of_the_work_comes_through():
    with pytest.raises(ZeroDivisionError):
        peak_during(lambda: 1 / 0)


def test_memory_that_was_freed_before_hides_nothing(needs_proc):
    pieces = [bytes(100_000) for _ in range(500)]  # small enough to stay with the allocator when freed
    del pieces
    assert peak_during(lambda: [b"x" * 100_000 for _ in range(200)])[1] == pytest.approx(20 * MB, rel=0.2)

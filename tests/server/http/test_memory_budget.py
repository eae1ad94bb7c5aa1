from __future__ import annotations

import pytest

from server.errors import BusyClientError, OverloadedError, TooLargeError
from server.http.memory_budget import SMALL_BYTES, MemoryBudget

MIB = 2**20


def test_what_is_reserved_counts_until_it_is_released():
    budget = MemoryBudget(8 * MIB)
    one, other = budget.reserve("a", MIB, factor=3), budget.reserve("b", 100)
    one.grow(50)
    assert budget.used_bytes == 3 * MIB + 150
    for reservation in (one, one, other):
        reservation.release()
    assert budget.used_bytes == 0


def test_bytes_received_count_with_the_factor():
    budget = MemoryBudget(8 * MIB)
    reservation = budget.reserve("a", 0, factor=3)
    reservation.receive(10)
    assert budget.used_bytes == reservation.size_bytes == 30


def test_one_owner_gets_half():
    budget = MemoryBudget(8 * MIB)
    budget.reserve("a", 3 * MIB)
    with pytest.raises(BusyClientError):
        budget.reserve("a", 2 * MIB)
    budget.reserve("b", 2 * MIB)
    with pytest.raises(TooLargeError):
        budget.reserve("c", 5 * MIB)


def test_small_requests_pass_when_large_ones_fill_the_rest():
    budget = MemoryBudget(8 * MIB)
    for owner in "ab":
        budget.reserve(owner, 3 * MIB)
    budget.reserve("c", MIB)
    with pytest.raises(OverloadedError):
        budget.reserve("d", SMALL_BYTES + 1)
    for _ in range(4):
        budget.reserve("d", SMALL_BYTES)
    with pytest.raises(OverloadedError):
        budget.reserve("e", 1)


def test_a_refusal_reserves_nothing():
    budget = MemoryBudget(8 * MIB)
    reservation = budget.reserve("a", MIB)
    with pytest.raises(TooLargeError):
        reservation.grow(10 * MIB)
    assert budget.used_bytes == MIB


def test_after_its_release_a_reservation_does_not_grow():
    budget = MemoryBudget(8 * MIB)
    reservation = budget.reserve("a", MIB)
    reservation.release()
    with pytest.raises(OverloadedError):
        reservation.grow(1)
    assert budget.used_bytes == 0

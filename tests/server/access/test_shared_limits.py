from __future__ import annotations

import threading
import time

import pytest

from device_sdk.errors import StorageError
from server.access.shared_limits import LeasedShares, SharedAttemptLimit, database_time_s
from server.errors import AttemptsError


class Seconds:
    def __init__(self):
        self.time = 1000.0

    def __call__(self, connection=None):
        return self.time


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def new_limit(new_database, seconds):
    """The limit as each server has it."""
    return lambda **settings: SharedAttemptLimit(new_database(), **{"now_s": seconds, **settings})


def fails(limit, address):
    try:
        limit.take(address)
    except AttemptsError:
        return True
    return False


def test_failures_of_an_address_are_counted_on_all_servers(new_limit, seconds):
    one, other = new_limit(limit=3, window_s=60), new_limit(limit=3, window_s=60)
    assert [fails(limit, "192.0.2.1") for limit in (one, other, one, other, one)] == [False, False, False, True, True]
    assert not fails(other, "192.0.2.2")
    seconds.time += 60
    assert not fails(one, "192.0.2.1")


def test_successes_are_not_counted(new_limit):
    limit = new_limit(limit=1)
    for _ in range(5):
        assert not fails(limit, "192.0.2.1")
        limit.forgive("192.0.2.1")


def test_the_addresses_of_an_ipv6_network_count_as_one(new_limit):
    limit = new_limit(limit=1)
    assert not fails(limit, "2001:db8::1")
    assert fails(limit, "2001:db8::ffff:2")
    assert not fails(limit, "2001:db8:0:1::1")


def test_only_so_many_addresses_are_remembered(new_limit, seconds):
    limit, found = new_limit(limit=1, max_addresses=2), []
    for address in ("a", "b", "c", "a", "a"):
        seconds.time += 1
        found.append(fails(limit, address))
    assert found == [False] * 4 + [True]


def test_of_attempts_at_once_on_all_servers_no_more_pass(new_limit):
    limits, passed = [new_limit(limit=4) for _ in range(3)], []

    def attempt(number):
        passed.append(not fails(limits[number % 3], "192.0.2.1"))

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 4


def test_the_time_is_that_of_the_database(database):
    with database.reading() as connection:
        assert abs(database_time_s(connection) - time.time()) < 60


@pytest.fixture
def new_shares(new_database, seconds):
    """The shares as each server has them; only the test renews them."""
    return lambda share: LeasedShares(new_database(), share, now_s=seconds, clock=seconds)


def test_the_share_holds_on_all_servers_together(new_shares):
    one, other = new_shares(3), new_shares(3)
    assert [one.take("a"), other.take("a"), one.take("a")] == [True] * 3
    assert not one.take("a")
    assert not other.take("a")
    assert other.take("b")


def test_places_that_are_not_used_go_back_and_to_other_servers(new_shares):
    one, other = new_shares(1), new_shares(1)
    assert one.take("a")
    one.give_back("a")
    assert not other.take("a")  # one still holds the lease
    one.renew()
    one.renew()
    assert other.take("a")
    assert not one.take("a")


class CountedDatabase:
    """A database that counts transactions and may be away."""

    def __init__(self, database):
        self._database, self.transactions, self.away = database, 0, False

    def writing(self):
        self.transactions += 1
        if self.away:
            raise StorageError("away")
        return self._database.writing()


@pytest.fixture
def counted(database):
    return CountedDatabase(database)


def test_a_client_that_sends_on_waits_for_the_database_once(counted, seconds):
    shares = LeasedShares(counted, 2, now_s=seconds, clock=seconds)
    for _ in range(5):
        assert shares.take("a")
        shares.give_back("a")
    assert counted.transactions == 1


def test_leases_of_a_server_that_ends_go_back_and_of_one_that_was_killed_after_a_while(new_shares, seconds):
    killed, ended, other = (new_shares(2) for _ in range(3))
    assert killed.take("a")
    assert ended.take("a")
    assert not other.take("a")
    ended.close()
    assert other.take("a")
    assert not other.take("a")
    seconds.time += 10
    other.renew()
    assert other.take("a")


def test_a_lease_that_was_not_renewed_in_time_is_not_used(new_shares, seconds):
    slow, other = new_shares(1), new_shares(1)
    assert slow.take("a")
    slow.give_back("a")
    seconds.time += 10
    assert other.take("a")
    assert not slow.take("a")


def test_while_the_database_is_away_each_server_keeps_the_share_alone(counted, seconds):
    shares, counted.away = LeasedShares(counted, 2, now_s=seconds, clock=seconds), True
    assert [shares.take("a") for _ in range(3)] == [True, True, False]
    assert counted.transactions == 1  # it is not waited for again and again
    for _ in range(2):
        shares.give_back("a")
    seconds.time, counted.away = seconds.time + 5, False
    assert shares.take("a")
    assert counted.transactions == 2


def test_servers_at_once_never_exceed_the_share(new_shares):
    servers, taken = [new_shares(3) for _ in range(3)], []

    def take(number):
        if servers[number % 3].take("a"):
            taken.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 3

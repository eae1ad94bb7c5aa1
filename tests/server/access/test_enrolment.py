from __future__ import annotations

import threading

import pytest

from device_sdk.errors import UsageError
from server.access.enrolment import AttemptLimit, Enrolments
from server.access.scopes import Client, Scope
from server.access.tokens import Gate, TokenStore
from server.errors import AttemptsError, ConflictError, MalformedError, UnauthorizedError
from server.state.database import Database


@pytest.fixture
def tokens(database, clock):
    return TokenStore(database, now=clock)


@pytest.fixture
def enrolments(database, clock):
    return Enrolments(database, now=clock)


def make(enrolments, device=None, minutes=15.0):
    return enrolments.new_code(device=device, minutes=minutes, days=90)


def test_a_code_is_exchanged_once_for_a_token_of_its_device(enrolments, tokens):
    code = make(enrolments, "pi-1")
    made = enrolments.exchange(code.lower().replace("-", " "), None)
    assert (made.device, made.expires) == ("pi-1", "2026-07-30T12:00:00+00:00")
    assert tokens.owner(made.token) == Client("pi-1", Scope.DEVICE, "pi-1")
    with pytest.raises(UnauthorizedError):
        enrolments.exchange(code, "pi-1")


def test_of_many_that_send_a_code_at_once_to_any_replica_one_gets_a_token(enrolments, new_database, clock):
    code, results = make(enrolments, "pi-1"), []
    replicas = [Enrolments(new_database(), now=clock) for _ in range(2)]

    def send(replica):
        try:
            results.append(replica.exchange(code, None).token)
        except UnauthorizedError:
            results.append(None)

    threads = [threading.Thread(target=send, args=(replicas[number % 2],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) - results.count(None) == 1


def test_codes_expire_and_guesses_are_wrong(enrolments, clock):
    code = make(enrolments, "pi-1")
    for wrong in ("", "AAAA-AAAA-AAAA-AAAA", code[:-1], "é"):
        with pytest.raises(UnauthorizedError):
            enrolments.exchange(wrong, None)
    clock.forward(minutes=15)
    with pytest.raises(UnauthorizedError):
        enrolments.exchange(code, None)


def test_a_code_for_one_device_enrols_no_other_and_is_not_used_up_by_trying(enrolments):
    code = make(enrolments, "pi-1")
    with pytest.raises(MalformedError):
        enrolments.exchange(code, "pi-2")
    assert enrolments.exchange(code, "pi-1").device == "pi-1"


def test_a_code_for_any_device_enrols_only_new_ones(enrolments, tokens):
    tokens.new("other", days=1, device="pi-1")
    code = make(enrolments)
    for device, error in (
        (None, MalformedError),
        ("a b", MalformedError),
        ("pi-1", ConflictError),
        ("other", ConflictError),
    ):
        with pytest.raises(error):
            enrolments.exchange(code, device)
    assert enrolments.exchange(code, "pi-2").device == "pi-2"


def test_enrolling_a_device_again_ends_its_earlier_token(enrolments, tokens):
    first = enrolments.exchange(make(enrolments, "pi-1"), None).token
    second = enrolments.exchange(make(enrolments, "pi-1"), None).token
    assert tokens.owner(second).device == "pi-1"
    with pytest.raises(UnauthorizedError):
        tokens.owner(first)


def test_a_code_cannot_take_the_token_of_an_operator(enrolments, tokens):
    code = make(enrolments, "boss")
    token = tokens.new("boss", days=1, scope=Scope.OPERATOR)
    with pytest.raises(ConflictError):
        enrolments.exchange(code, None)
    with pytest.raises(UsageError):
        make(enrolments, "boss")
    assert tokens.owner(token).scope is Scope.OPERATOR


def test_a_code_closes_the_server_and_only_its_hash_is_kept(tmp_path, clock):
    database = Database(tmp_path / "x.sqlite3")
    code = make(Enrolments(database, now=clock))
    assert Gate(TokenStore(database), None).closed
    for file in tmp_path.iterdir():
        assert code.encode() not in file.read_bytes()
        assert code.replace("-", "").encode() not in file.read_bytes()


class Seconds:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def seconds():
    return Seconds()


def fails(limit, address):
    try:
        limit.take(address)
    except AttemptsError:
        return True
    return False


def test_failures_of_an_address_are_bounded_for_a_while(seconds):
    limit = AttemptLimit(limit=3, window_s=60, clock=seconds)
    assert [fails(limit, "192.0.2.1") for _ in range(5)] == [False, False, False, True, True]
    assert not fails(limit, "192.0.2.2")
    seconds.time = 60
    assert not fails(limit, "192.0.2.1")


def test_successes_are_not_counted(seconds):
    limit = AttemptLimit(limit=1, clock=seconds)
    for _ in range(5):
        assert not fails(limit, "192.0.2.1")
        limit.forgive("192.0.2.1")


def test_the_addresses_of_an_ipv6_network_count_as_one(seconds):
    limit = AttemptLimit(limit=1, clock=seconds)
    assert not fails(limit, "2001:db8::1")
    assert fails(limit, "2001:db8::ffff:2")
    assert not fails(limit, "2001:db8:0:1::1")


def test_only_so_many_addresses_are_remembered(seconds):
    limit = AttemptLimit(limit=1, max_addresses=2, clock=seconds)
    assert [fails(limit, address) for address in ("a", "b", "c", "a")] == [False] * 4
    assert fails(limit, "a")

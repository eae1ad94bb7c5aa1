from __future__ import annotations

import contextlib
import threading

import pytest

from device_sdk.errors import UsageError
from server.access.scopes import Client, Scope
from server.access.tokens import Gate, TokenStore
from server.errors import ForbiddenError, UnauthorizedError
from server.state.database import Database

REMOTE = "192.0.2.7"


@pytest.fixture
def store(database, clock):
    return TokenStore(database, now=clock)


def refused(gate, token):
    with pytest.raises(UnauthorizedError) as caught:
        gate.admit(token, REMOTE)
    return str(caught.value)


def test_without_tokens_everybody_is_let_in(store):
    assert not Gate(store, None).closed
    assert Gate(store, None).admit(None, "127.0.0.1") == Client("127.0.0.1", Scope.OPERATOR)
    assert Gate(store, None).admit(None, "::ffff:127.0.0.1").scope is Scope.OPERATOR
    assert Gate(store, None).admit(None, REMOTE) == Client(REMOTE, Scope.DEVICE)


def test_a_token_lets_its_owner_in_and_nobody_else(store):
    gate = Gate(store, None)
    token = store.new("laptop", days=1)
    assert gate.closed
    assert gate.admit(token, REMOTE) == Client("laptop", Scope.DEVICE)
    assert refused(gate, None) == "this server requires a token"
    assert refused(gate, "") == "this server requires a token"
    for wrong in ("x", token[:-1], f"{token}x", token.upper(), "ÿ"):
        assert refused(gate, wrong) == "the token is wrong"


def test_no_two_tokens_are_alike(store):
    tokens = {store.new(f"device-{number}", days=1) for number in range(20)}
    assert len(tokens) == 20
    assert all(len(token) > 40 for token in tokens)


def test_only_a_hash_is_kept(tmp_path):
    token = TokenStore(Database(tmp_path / "x.sqlite3")).new("laptop", days=1)
    for file in tmp_path.iterdir():
        assert token.encode() not in file.read_bytes()


def test_expired_and_revoked_are_told_to_who_had_the_token(store, clock):
    gate = Gate(store, None)
    short, long = store.new("short", days=1), store.new("long", days=30)
    clock.forward(days=1)
    assert refused(gate, short) == "the token has expired"
    assert gate.admit(long, REMOTE).name == "long"
    store.revoke("long")
    assert refused(gate, long) == "the token has been revoked"
    assert refused(gate, "guess") == "the token is wrong"
    assert {info.name: info.state for info in store.all()} == {"short": "expired", "long": "revoked"}


def test_the_server_stays_closed_when_the_last_token_ends(store):
    gate = Gate(store, None)
    store.new("only", days=1)
    store.revoke("only")
    assert gate.closed
    assert "requires a token" in refused(gate, None)


def test_the_token_of_the_environment_counts_beside_the_others(store):
    gate = Gate(store, "secret")
    assert gate.admit("secret", REMOTE) == Client("environment", Scope.OPERATOR)
    assert refused(gate, "Secret") == "the token is wrong"
    assert gate.admit(store.new("laptop", days=1), REMOTE).name == "laptop"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 129, "-x", "a\n"])
def test_names_are_plain(store, name):
    with pytest.raises(UsageError):
        store.new(name, days=1)


def test_a_name_is_given_once(store):
    store.new("laptop", days=1)
    with pytest.raises(UsageError, match="already"):
        store.new("laptop", days=1)
    with pytest.raises(UsageError, match="no token"):
        store.revoke("desktop")


def test_rotating_ends_the_old_token_and_keeps_scope_and_device(store):
    gate = Gate(store, None)
    old = store.new("pi", days=1, scope=Scope.PACKAGE, device="pi-1")
    new = store.rotate("pi", days=1)
    assert refused(gate, old) == "the token is wrong"
    assert gate.admit(new, REMOTE) == Client("pi", Scope.PACKAGE, "pi-1")
    with pytest.raises(UsageError, match="no token"):
        store.rotate("desktop", days=1)


def test_restricting_only_ever_lowers(store):
    gate = Gate(store, None)
    token = store.new("pi", days=1, scope=Scope.OPERATOR)
    store.restrict("pi", scope=Scope.DEVICE, device="pi-1")
    assert gate.admit(token, REMOTE) == Client("pi", Scope.DEVICE, "pi-1")
    with pytest.raises(UsageError, match="cannot be raised"):
        store.restrict("pi", scope=Scope.PACKAGE, device=None)
    with pytest.raises(UsageError, match="bound to pi-1"):
        store.restrict("pi", scope=Scope.DEVICE, device="pi-2")


def test_a_bound_token_sends_no_log_of_another_device(store):
    gate = Gate(store, None)
    client = gate.admit(store.new("pi", days=1, device="pi-1"), REMOTE)
    gate.require_device(client, "pi-1")
    with pytest.raises(ForbiddenError, match="bound to the device pi-1"):
        gate.require_device(client, "pi-2")


def test_the_first_log_binds_a_token_to_its_device(store):
    gate = Gate(store, None)
    first, second = store.new("first", days=1), store.new("second", days=1)
    gate.require_device(gate.admit(first, REMOTE), "pi-1")
    assert gate.admit(first, REMOTE).device == "pi-1"
    with pytest.raises(ForbiddenError, match="belongs to another client"):
        gate.require_device(gate.admit(second, REMOTE), "pi-1")
    gate.require_device(gate.admit(second, REMOTE), "pi-2")


def test_of_tokens_that_claim_a_device_at_once_at_any_replica_one_is_bound(new_database, clock):
    stores = [TokenStore(new_database(), now=clock) for _ in range(2)]
    names, bound = [f"client-{number}" for number in range(8)], []
    for name in names:
        stores[0].new(name, days=1)

    def claim(number):
        if stores[number % 2].claim(names[number], "pi-1"):
            bound.append(names[number])

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [info.name for info in stores[1].all() if info.device] == bound
    assert len(bound) == 1


def test_of_tokens_that_are_made_at_once_under_one_name_one_counts(new_database, clock):
    stores, made = [TokenStore(new_database(), now=clock) for _ in range(2)], []

    def make(store):
        with contextlib.suppress(UsageError):
            made.append(store.new("laptop", days=1))

    threads = [threading.Thread(target=make, args=(stores[number % 2],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert stores[0].owner(made[0]).name == "laptop"


def test_an_operator_may_send_any_log(store):
    gate = Gate(store, None)
    operator = gate.admit(store.new("boss", days=1, scope=Scope.OPERATOR), REMOTE)
    for device in ("pi-1", "pi-2"):
        gate.require_device(operator, device)


def test_the_name_of_the_environments_token_is_not_given(store):
    with pytest.raises(UsageError, match="already"):
        store.new("environment", days=1)

from __future__ import annotations

import pytest

from device_sdk.errors import StorageError
from server.access.recent import RecentDecisions
from server.access.tokens import Gate, TokenStore
from server.errors import UnauthorizedError

ADDRESS = "192.0.2.1"


class Seconds:
    now = 0.0

    def __call__(self):
        return self.now


class CountingTokens(TokenStore):
    """Tokens whose database may be away; counts look-ups."""

    away, looked_up = False, 0

    def owner(self, token):
        self.looked_up += 1
        if self.away:
            raise StorageError("away")
        return super().owner(token)


@pytest.fixture
def tokens(database, clock):
    return CountingTokens(database, now=clock)


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def recent(tokens, seconds):
    return RecentDecisions(Gate(tokens, None), clock=seconds)


def test_a_token_is_looked_up_once_a_second(recent, tokens, seconds):
    token = tokens.new("pi", days=1)
    for now in (0.0, 0.5, 0.99, 1.0, 1.5):
        seconds.now = now
        assert recent.decide(token, ADDRESS).client.name == "pi"
    assert tokens.looked_up == 2


def test_wrong_tokens_are_not_remembered_and_clients_without_one_by_their_address(recent, tokens):
    assert [recent.decide(None, address).client.name for address in (ADDRESS, "::1")] == [ADDRESS, "::1"]
    tokens.new("pi", days=1)
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            recent.decide("wrong", ADDRESS)
    assert tokens.looked_up == 2


def test_while_the_database_is_away_decisions_of_the_last_minute_stand(recent, tokens, seconds):
    token, other = (tokens.new(name, days=1) for name in ("pi", "other"))
    recent.decide(token, ADDRESS)
    tokens.away, seconds.now = True, 59.0
    assert recent.decide(token, ADDRESS).client.name == "pi"
    with pytest.raises(StorageError):
        recent.decide(other, ADDRESS)
    seconds.now = 60.0
    with pytest.raises(StorageError):
        recent.decide(token, ADDRESS)


def test_a_revoked_token_is_refused_within_a_second(recent, tokens, seconds):
    token = tokens.new("pi", days=1)
    recent.decide(token, ADDRESS)
    tokens.revoke("pi")
    seconds.now = 1.0
    with pytest.raises(UnauthorizedError):
        recent.decide(token, ADDRESS)

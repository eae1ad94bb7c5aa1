from __future__ import annotations

import base64

import pytest

from server.access.admission import Admission
from server.access.recent import RecentDecisions
from server.access.route import find_routes
from server.access.tokens import Gate, TokenStore
from server.app import create_app
from server.errors import TooLargeError, UnauthorizedError
from server.http.memory_budget import MemoryBudget
from server.state.database import Database

MIB = 2**20


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def tokens(tmp_path):
    return TokenStore(Database(tmp_path / "server.sqlite3"))


@pytest.fixture
def parts(tokens, server):
    """The admission, its budgets and its clock."""
    memory, uploads, clock = MemoryBudget(8 * MIB), MemoryBudget(80 * MIB), Clock()
    find_route = find_routes(create_app(server.services.settings, services=server.services))
    return (
        Admission(RecentDecisions(Gate(tokens, None), clock=clock), find_route, memory=memory, uploads=uploads),
        memory,
        uploads,
        clock,
    )


def ask(admission, path="/v2/models/a/infer", body_bytes=1000, **headers):
    return admission("POST", path, headers, address="10.0.0.1", body_bytes=body_bytes)


def bearer(token):
    return {"AUTHORIZATION": f"Bearer {token}"}


def test_a_body_is_reserved_with_its_copies(parts):
    admission, memory, _, _ = parts
    ask(admission)
    assert memory.used_bytes == 3000


def test_a_compressed_body_is_reserved_as_it_comes(parts):
    admission, memory, _, _ = parts
    ask(admission, CONTENT_ENCODING="gzip")
    assert memory.used_bytes == 1000


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/"])
def test_weights_go_to_disk_and_take_no_memory(parts, path):
    admission, memory, uploads, _ = parts
    ask(admission, path, 30 * MIB)
    assert (memory.used_bytes, uploads.used_bytes) == (0, 30 * MIB)


def test_without_a_valid_token_nothing_is_reserved(parts, tokens):
    admission, memory, _, _ = parts
    good = tokens.new("pi", days=1)
    for headers in ({}, bearer("wrong"), {"AUTHORIZATION": "Bearer"}, {"AUTHORIZATION": "\xff nonsense"}):
        with pytest.raises(UnauthorizedError):
            ask(admission, **headers)
    assert memory.used_bytes == 0
    ask(admission, **bearer(good))
    basic = base64.b64encode(f"me:{good}".encode()).decode()
    ask(admission, AUTHORIZATION=f"Basic {basic}")
    assert memory.used_bytes == 6000


def test_the_share_is_that_of_the_token_not_of_the_address(parts, tokens):
    admission, memory, _, _ = parts
    one, other = (tokens.new(name, days=1) for name in ("one", "other"))
    for token in (one, other):
        ask(admission, body_bytes=MIB, **bearer(token))
    assert memory.used_bytes == 6 * MIB


def test_a_revoked_token_is_refused_within_a_second(parts, tokens):
    admission, _, _, clock = parts
    token = tokens.new("pi", days=1)
    ask(admission, **bearer(token))
    tokens.revoke("pi")
    clock.now = 1.0
    with pytest.raises(UnauthorizedError):
        ask(admission, **bearer(token))


def test_a_body_that_never_fits_is_told_its_size(parts):
    admission, memory, _, _ = parts
    with pytest.raises(TooLargeError, match=str(2 * MIB)):
        ask(admission, body_bytes=2 * MIB)
    assert memory.used_bytes == 0


def test_a_device_that_enrols_has_no_token_yet(parts, tokens):
    admission, memory, _, _ = parts
    tokens.new("laptop", days=1)
    with pytest.raises(UnauthorizedError):
        ask(admission)
    ask(admission, "/v1/enrolments", 100)
    assert memory.used_bytes == 300

"""Access tokens, stored as hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from device_sdk.bundles.manifest import IDENTIFIER
from device_sdk.errors import UsageError
from server.database import Database
from server.errors import UnauthorizedError

_PREFIX = "pw_"  # lets secret scanners recognise leaked tokens
_HOW = "send the header Authorization: Bearer TOKEN"
_NEW = "make another with pathweave token new"


def utc_now() -> datetime:
    """The clock of the server."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class TokenInfo:
    """A token's metadata. Times are ISO 8601 in UTC."""

    name: str
    created: str
    expires: str
    state: str  # valid, expired or revoked


class TokenStore:
    """The tokens in a database."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def new(self, name: str, *, days: float) -> str:
        """Create a token and return it. It cannot be retrieved later.

        Raises:
            UsageError: the name is taken, or not 1 to 128 letters, digits, dots, dashes and underscores.
        """
        if not IDENTIFIER.fullmatch(name):
            raise UsageError(
                f"{name[:80]!r} cannot be the name of a token", hint="use letters, digits, dots and dashes"
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        now = self._now()
        expires = now + timedelta(days=days)
        row = (name, _hash(token), now.isoformat(timespec="seconds"), expires.isoformat(timespec="seconds"))
        with self._database.writing() as connection:
            if connection.execute("SELECT 1 FROM tokens WHERE name = ?", (name,)).fetchone():
                raise UsageError(f"a token {name} exists already", hint="choose another name")
            connection.execute("INSERT INTO tokens (name, hash, created, expires) VALUES (?, ?, ?, ?)", row)
        return token

    def all(self) -> list[TokenInfo]:
        """All tokens, expired and revoked ones included, by name."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT name, created, expires, revoked FROM tokens ORDER BY name").fetchall()
        return [
            TokenInfo(name, created, expires, self._state(expires, revoked)) for name, created, expires, revoked in rows
        ]

    def revoke(self, name: str) -> None:
        """Revoke a token (UsageError if there is none of this name)."""
        with self._database.writing() as connection:
            if not connection.execute("UPDATE tokens SET revoked = 1 WHERE name = ?", (name,)).rowcount:
                raise UsageError(f"there is no token {name}", hint="pathweave token list shows them")

    def exist(self) -> bool:
        """Whether any token exists. Expired and revoked ones count, so the server does not become public again."""
        with self._database.reading() as connection:
            return connection.execute("SELECT 1 FROM tokens LIMIT 1").fetchone() is not None

    def owner(self, token: str) -> str:
        """The name of a token.

        Raises:
            UnauthorizedError: it is wrong, expired or revoked; says which.
        """
        # The lookup is by hash, so its timing reveals nothing about tokens.
        with self._database.reading() as connection:
            query = "SELECT name, expires, revoked FROM tokens WHERE hash = ?"
            row = connection.execute(query, (_hash(token),)).fetchone()
        if row is None:
            raise UnauthorizedError("the token is wrong", hint=_HOW)
        name, expires, revoked = row
        state = self._state(expires, revoked)
        if state != "valid":
            raise UnauthorizedError(f"the token has {'expired' if state == 'expired' else 'been revoked'}", hint=_NEW)
        return str(name)

    def _state(self, expires: str, revoked: int) -> str:
        if revoked:
            return "revoked"
        return "valid" if self._now() < datetime.fromisoformat(expires) else "expired"


class Gate:
    """Admits requests with a valid token, or all requests if no token exists.

    ``fixed``: an additional token, from the environment.
    """

    def __init__(self, tokens: TokenStore, fixed: str | None) -> None:
        self._tokens = tokens
        self._fixed = None if fixed is None else _hash(fixed)

    @property
    def closed(self) -> bool:
        """Whether a token is required."""
        return self._fixed is not None or self._tokens.exist()

    def admit(self, token: str | None) -> str | None:
        """The name of the token; None if no token is required.

        Raises:
            UnauthorizedError: the token is missing, wrong, expired or revoked; says which.
        """
        if not self.closed:
            return None
        if not token:
            raise UnauthorizedError("this server requires a token", hint=_HOW)
        if self._fixed is not None and hmac.compare_digest(self._fixed, _hash(token)):
            return "environment"
        return self._tokens.owner(token)


def _hash(token: str) -> bytes:
    # Tokens are 256 random bits: a slow password hash would not add security.
    return hashlib.sha256(token.encode()).digest()

"""Access tokens, stored as hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from device_sdk.errors import UsageError
from device_sdk.supernet.blocks import IDENTIFIER
from server.access.scopes import Client, Scope
from server.errors import ForbiddenError, UnauthorizedError
from server.http.connections import parsed_address
from server.state.database import Database, insert, utc_now
from server.state.log_store import lock_device
from server.state.tables import ENROLMENT_CODES, LOG_LINES, TOKENS

_PREFIX = "pw_"  # lets secret scanners recognise leaked tokens
_HOW = "send the header Authorization: Bearer TOKEN"
_NEW = "make another with pathweave admin token new, or pathweave admin token rotate"
FIXED = "environment"  # the name of the token in PATHWEAVE_TOKEN


@dataclass(frozen=True)
class TokenInfo:
    """A token's metadata. Times are ISO 8601 in UTC; ``device``: the device that it is bound to."""

    name: str
    scope: str
    device: str | None
    created: str
    expires: str
    state: str  # valid, expired or revoked


_SHOWN = [TOKENS.c[name] for name in ("name", "scope", "device", "created", "expires", "revoked")]


class TokenStore:
    """The tokens in a database."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def new(self, name: str, *, days: float, scope: Scope = Scope.DEVICE, device: str | None = None) -> str:
        """Create a token and return it. It cannot be retrieved later.

        Raises:
            UsageError: the name is taken, or name or device is not 1 to 128 letters, digits, dots, dashes and
                underscores.
        """
        _require_plain(name, "name of a token")
        if name != FIXED:
            with self._database.writing() as connection:
                token, row = self._made(connection, name, days=days, scope=scope, device=device)
                added = insert(connection, TOKENS).on_conflict_do_nothing(index_elements=["name"])
                if connection.execute(added.returning(TOKENS.c.name), row).first():
                    return token
        raise UsageError(f"a token {name} exists already", hint="choose another name, or rotate it")

    def replace(self, connection: sa.Connection, name: str, *, days: float, scope: Scope, device: str | None) -> str:
        """Create a token, or replace the one of this name, in a transaction of the caller. Returns it."""
        token, row = self._made(connection, name, days=days, scope=scope, device=device)
        added = insert(connection, TOKENS)
        connection.execute(added.on_conflict_do_update(index_elements=["name"], set_={**row, "revoked": 0}), row)
        return token

    def _made(
        self, connection: sa.Connection, name: str, *, days: float, scope: Scope, device: str | None
    ) -> tuple[str, dict[str, object]]:
        """A new token and its row."""
        if device is not None:
            _require_plain(device, "name of a device")
            lock_device(connection, device)  # another token may be claiming it
        token, now = _PREFIX + secrets.token_urlsafe(32), self._now()
        return token, {
            "name": name,
            "hash": hash_of(token),
            "created": time_text(now),
            "expires": time_text(now + timedelta(days=days)),
            "scope": scope.label,
            "device": device,
        }

    def rotate(self, name: str, *, days: float) -> str:
        """Replace a token by another with its scope and device; the old one ends at once, also if it was revoked.

        Raises:
            UsageError: there is none of this name.
        """
        with self._database.writing() as connection:
            _, scope, device = _existing(connection, name)
            return self.replace(connection, name, days=days, scope=Scope.named(scope), device=device)

    def restrict(self, name: str, *, scope: Scope, device: str | None) -> None:
        """Lower the scope of a token and bind it to a device (None: leave the binding), without changing the token.

        Raises:
            UsageError: there is none of this name, its scope is lower already, or it is bound to another device.
        """
        with self._database.writing() as connection:
            _, present, bound = _existing(connection, name)
            if scope > Scope.named(present):
                raise UsageError(f"{name} has the scope {present}, which cannot be raised", hint="make another token")
            if device is not None:
                _require_plain(device, "name of a device")
                if bound not in (None, device):
                    raise UsageError(f"{name} is bound to {bound} already", hint="make another token")
            narrowed = sa.update(TOKENS).where(TOKENS.c.name == name)
            connection.execute(narrowed.values(scope=scope.label, device=bound if device is None else device))

    def claim(self, name: str, device: str) -> bool:
        """Bind a token to the first device that it sends a log of; False if the device has lines or a token already."""
        with self._database.writing() as connection:
            lock_device(connection, device)
            if is_known(connection, device):
                return False
            unbound = sa.update(TOKENS).where(TOKENS.c.name == name, TOKENS.c.device.is_(None))
            return bool(connection.execute(unbound.values(device=device)).rowcount)

    def all(self) -> list[TokenInfo]:
        """All tokens, expired and revoked ones included, by name."""
        return self._found(sa.select(*_SHOWN).order_by(TOKENS.c.name))

    def page(self, *, most: int, after: str | None = None) -> list[TokenInfo]:
        """At most so many of all tokens, by name, behind the name ``after``."""
        query = sa.select(*_SHOWN).order_by(TOKENS.c.name).limit(most)
        return self._found(query if after is None else query.where(TOKENS.c.name > after))

    def _found(self, query: sa.Select[Any]) -> list[TokenInfo]:
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            TokenInfo(name, scope, device, created, expires, self._state(expires, revoked))
            for name, scope, device, created, expires, revoked in rows
        ]

    def revoke(self, name: str) -> None:
        """Revoke a token (UsageError if there is none of this name)."""
        with self._database.writing() as connection:
            _existing(connection, name)
            connection.execute(sa.update(TOKENS).where(TOKENS.c.name == name).values(revoked=1))

    def exist(self) -> bool:
        """True if any token or enrolment code exists.

        Expired, revoked and used ones count, so the server does not become public again.
        """
        with self._database.reading() as connection:
            return bool(connection.execute(_ANY).scalar_one())

    def owner(self, token: str) -> Client:
        """The client that a token stands for.

        Raises:
            UnauthorizedError: it is wrong, expired or revoked; says which.
        """
        # The lookup is by hash, so its timing reveals nothing about tokens.
        with self._database.reading() as connection:
            row = connection.execute(_OWNER, {"sent": hash_of(token)}).first()
        if row is None:
            raise UnauthorizedError("the token is wrong", hint=_HOW)
        name, scope, device, expires, revoked = row
        state = self._state(expires, revoked)
        if state != "valid":
            raise UnauthorizedError(f"the token has {'expired' if state == 'expired' else 'been revoked'}", hint=_NEW)
        return Client(name, Scope.named(scope), device)

    def _state(self, expires: str, revoked: int) -> str:
        if revoked:
            return "revoked"
        return "valid" if self._now() < datetime.fromisoformat(expires) else "expired"


@dataclass(frozen=True)
class Decision:
    """``client``: who was admitted; ``closed``: a token was required."""

    client: Client
    closed: bool


class Gate:
    """Admits requests with a valid token, or all requests if no token exists.

    ``fixed``: an additional token, from the environment, with the scope ``operator``.
    """

    def __init__(self, tokens: TokenStore, fixed: str | None) -> None:
        self._tokens = tokens
        self._fixed = None if fixed is None else hash_of(fixed)
        self._was_closed = fixed is not None  # tokens are never deleted, so it stays closed

    @property
    def closed(self) -> bool:
        """True if a token is required."""
        self._was_closed = self._was_closed or self._tokens.exist()
        return self._was_closed

    def admit(self, token: str | None, address: str) -> Client:
        """The client with this token. Without tokens: an operator if ``address`` is this machine, else a device.

        Raises:
            UnauthorizedError: the token is missing, wrong, expired or revoked; says which.
        """
        return self.decide(token, address).client

    def decide(self, token: str | None, address: str) -> Decision:
        """As ``admit``, and whether a token was required."""
        if self.closed:
            return Decision(self._owner(token), closed=True)
        parsed = parsed_address(address)
        local = parsed is not None and parsed.is_loopback
        return Decision(Client(address, Scope.OPERATOR if local else Scope.DEVICE), closed=False)

    def _owner(self, token: str | None) -> Client:
        if not token:
            raise UnauthorizedError("this server requires a token", hint=_HOW)
        if self._fixed is not None and hmac.compare_digest(self._fixed, hash_of(token)):
            return Client(FIXED, Scope.OPERATOR)
        return self._tokens.owner(token)

    def is_device(self, client: Client, device: str) -> bool:
        """True if ``client`` speaks for ``device`` already. Binds nothing."""
        return client.device == device or (client.device is None and (client.may(Scope.OPERATOR) or not self.closed))

    def require_device(self, client: Client, device: str) -> None:
        """Check that ``client`` may send log lines of ``device``; its first upload binds an unbound token.

        Raises:
            ForbiddenError: it is bound to another, or ``device`` belongs to another client.
        """
        if self.is_device(client, device):
            return
        if client.device is not None:
            raise ForbiddenError(
                f"the token {client.name} is bound to the device {client.device}",
                hint="send the log under that name, or use another token",
            )
        if not self._tokens.claim(client.name, device):
            raise ForbiddenError(
                f"the device {device} belongs to another client",
                hint=f"pathweave admin token restrict {client.name} --device {device} binds this token to it",
            )


def hash_of(secret: str) -> bytes:
    """The hash under which a token or code is stored."""
    # They are random, of 80 bits or more: a slow password hash would not add security.
    return hashlib.sha256(secret.encode()).digest()


_ANY = sa.select(sa.exists(sa.select(TOKENS.c.name)) | sa.exists(sa.select(ENROLMENT_CODES.c.hash)))
_OWNER = sa.select(TOKENS.c.name, TOKENS.c.scope, TOKENS.c.device, TOKENS.c.expires, TOKENS.c.revoked).where(
    TOKENS.c.hash == sa.bindparam("sent")
)


def is_known(connection: sa.Connection, device: str) -> bool:
    """True if the device has a token or log lines."""
    bound = sa.exists(sa.select(TOKENS.c.name).where(TOKENS.c.device == device))
    seen = sa.exists(sa.select(LOG_LINES.c.id).where(LOG_LINES.c.device == device))
    return bool(connection.execute(sa.select(bound | seen)).scalar_one())


def _existing(connection: sa.Connection, name: str) -> tuple[str, str, str | None]:
    """Name, scope and device of a token, whose row the caller's transaction then holds."""
    query = sa.select(TOKENS.c.name, TOKENS.c.scope, TOKENS.c.device).where(TOKENS.c.name == name)
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise UsageError(f"there is no token {name}", hint="pathweave admin token list shows them")
    return row


def _require_plain(name: str, what: str) -> None:
    if not IDENTIFIER.fullmatch(name):
        raise UsageError(f"{name[:80]!r} cannot be the {what}", hint="use letters, digits, dots and dashes")


def time_text(time: datetime) -> str:
    """A time as ISO 8601, to the second."""
    return time.isoformat(timespec="seconds")

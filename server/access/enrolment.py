"""Enrolment: one-time codes that devices exchange for tokens bound to them."""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from device_sdk.errors import UsageError
from server.access.scopes import Scope
from server.access.tokens import TokenStore, hash_of, is_known, time_text
from server.errors import AttemptsError, ConflictError, MalformedError, UnauthorizedError
from server.http.connections import address_group
from server.state.database import Database, utc_now
from server.state.log_store import is_device, lock_device
from server.state.tables import ENROLMENT_CODES, TOKENS

_CODE_BYTES = 10  # 80 bits: a leaked hash cannot be inverted before or after the code expires
_GROUP = 4  # characters between dashes

ATTEMPTS_LIMIT, ATTEMPTS_WINDOW_S, MAX_ADDRESSES = 10, 900.0, 10_000


@dataclass(frozen=True)
class Enrolment:
    """A new token of a device. ``expires``: ISO 8601 in UTC."""

    token: str
    device: str
    expires: str


class Enrolments:
    """The enrolment codes in a database. A code is exchanged once, before it expires."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database, self._now = database, now
        self._tokens = TokenStore(database, now=now)

    def new_code(self, *, device: str | None, minutes: float, days: float) -> str:
        """Create a code for ``device`` (None: for any new one), whose token will be valid for ``days``.

        Raises:
            UsageError: not the name of a device, or a token of that name is not one of this device.
        """
        text = base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode()
        code = "-".join(text[at : at + _GROUP] for at in range(0, len(text), _GROUP))
        now = self._now()
        with self._database.writing() as connection:
            if device is not None:
                if not is_device(device):
                    raise UsageError(f"{device[:80]!r} cannot be the name of a device")
                if _is_taken(connection, device):
                    raise UsageError(f"a token {device} with another purpose exists", hint="name the device otherwise")
            row = {"hash": hash_of(_plain(code)), "device": device, "days": days, "created": time_text(now)}
            expires = time_text(now + timedelta(minutes=minutes))
            connection.execute(sa.insert(ENROLMENT_CODES), {**row, "expires": expires})
        return code

    def exchange(self, code: str, device: str | None) -> Enrolment:
        """Exchange a code for the token ``device``, bound to that device. An earlier token of the device ends.

        Raises:
            UnauthorizedError: the code is wrong, used, or expired. MalformedError: no device, or not that of the code.
            ConflictError: the device is known already, and the code is not for it. The code is not used up then.
        """
        with self._database.writing() as connection:
            digest, bound, days = self._find(connection, code)
            name = bound or device
            if name is None or not is_device(name) or device not in (None, name):
                raise MalformedError(
                    "the code is for another device" if bound else "the request names no device",
                    hint='send {"code": …, "device": "NAME"}',
                )
            lock_device(connection, name)
            if _is_taken(connection, name) or (bound is None and is_known(connection, name)):
                raise ConflictError(f"the device {name} is known already", hint=f"make a code with --device {name}")
            self._use_up(connection, digest)
            earlier = sa.update(TOKENS).where(TOKENS.c.device == name, TOKENS.c.scope == Scope.DEVICE.label)
            connection.execute(earlier.values(revoked=1))
            token = self._tokens.replace(connection, name, days=days, scope=Scope.DEVICE, device=name)
        return Enrolment(token, name, time_text(self._now() + timedelta(days=days)))

    def _use_up(self, connection: sa.Connection, digest: bytes) -> None:
        """Of those that send a code at once, on any replica, one goes on."""
        unused = sa.update(ENROLMENT_CODES).where(ENROLMENT_CODES.c.hash == digest, ENROLMENT_CODES.c.used.is_(None))
        if not connection.execute(unused.values(used=time_text(self._now()))).rowcount:
            raise _wrong_code()

    def _find(self, connection: sa.Connection, code: str) -> tuple[bytes, str | None, float]:
        """Hash, device and days of a valid code. All codes are compared, each in constant time."""
        sent, found, codes = hash_of(_plain(code)), None, ENROLMENT_CODES.c
        valid = sa.select(codes.hash, codes.device, codes.days).where(
            codes.used.is_(None), codes.expires > time_text(self._now())
        )
        for digest, device, days in connection.execute(valid):
            if hmac.compare_digest(digest, sent):
                found = (digest, device, days)
        if found is None:
            raise _wrong_code()
        return found


def _wrong_code() -> UnauthorizedError:
    return UnauthorizedError(
        "the code is wrong, was used already, or has expired", hint="make another: pathweave admin token enrol-code"
    )


def too_many_attempts() -> AttemptsError:
    """The error of an address that must wait."""
    return AttemptsError("too many wrong enrolment codes from this address", hint="try again later")


class AttemptLimit:
    """Counts failures per address: at most ``limit`` in ``window_s`` seconds. Thread-safe.

    Addresses of one IPv6 network of 64 bits count as one. The ``max_addresses`` latest are remembered.
    """

    def __init__(
        self,
        *,
        limit: int = ATTEMPTS_LIMIT,
        window_s: float = ATTEMPTS_WINDOW_S,
        max_addresses: int = MAX_ADDRESSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._window_s, self._max_addresses, self._clock = limit, window_s, max_addresses, clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()  # start of the window, failures in it

    def take(self, address: str) -> None:
        """Count an attempt, as a failure until ``forgive``.

        Raises:
            AttemptsError: too many failures; the attempt must not be carried out.
        """
        key, now = address_group(address), self._clock()
        with self._lock:
            began, failures = self._failures.pop(key, (now, 0))
            if now - began >= self._window_s:
                began, failures = now, 0
            self._failures[key] = (began, min(failures + 1, self._limit + 1))
            if len(self._failures) > self._max_addresses:
                self._failures.popitem(last=False)
        if failures >= self._limit:
            raise too_many_attempts()

    def forgive(self, address: str) -> None:
        """Take back an attempt that succeeded."""
        key = address_group(address)
        with self._lock:
            began, failures = self._failures.get(key, (0.0, 0))
            if failures:
                self._failures[key] = (began, failures - 1)


def _is_taken(connection: sa.Connection, device: str) -> bool:
    """True if a token of this name exists that is not this device's own."""
    query = sa.select(TOKENS.c.scope, TOKENS.c.device).where(TOKENS.c.name == device)
    row = connection.execute(query).first()
    return row is not None and tuple(row) != (Scope.DEVICE.label, device)


def _plain(code: str) -> str:
    return "".join(code.split()).replace("-", "").upper()

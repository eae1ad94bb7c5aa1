"""Limits that all servers of one database keep together. Time is the database's, so their clocks may differ."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from device_sdk.errors import StorageError
from server.access.enrolment import ATTEMPTS_LIMIT, ATTEMPTS_WINDOW_S, MAX_ADDRESSES, too_many_attempts
from server.http.connections import address_group
from server.state.database import POSTGRESQL, Database, insert
from server.state.tables import ENROLMENT_ATTEMPTS, SHARE_LEASES

_log = logging.getLogger(__name__)

_LEASE_S, _RENEW_S = 10.0, 1.0
_AWAY_S = 5.0  # after a failure the database is not asked for so long

DatabaseTime = Callable[[sa.Connection], float]


def database_time_s(connection: sa.Connection) -> float:
    """Seconds since 1970 by the database's clock."""
    if connection.dialect.name != POSTGRESQL:
        return time.time()  # the file is on this machine
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())


class SharedAttemptLimit:
    """As ``AttemptLimit``, counted by all servers together."""

    def __init__(
        self,
        database: Database,
        *,
        limit: int = ATTEMPTS_LIMIT,
        window_s: float = ATTEMPTS_WINDOW_S,
        max_addresses: int = MAX_ADDRESSES,
        now_s: DatabaseTime = database_time_s,
    ) -> None:
        self._database, self._now_s = database, now_s
        self._limit, self._window_s, self._max_addresses = limit, window_s, max_addresses

    def take(self, address: str) -> None:
        """Count an attempt, as a failure until ``forgive``.

        Raises:
            AttemptsError: too many failures; the attempt must not be carried out. StorageError.
        """
        rows, key = ENROLMENT_ATTEMPTS.c, address_group(address)
        with self._database.writing() as connection:
            now_s = self._now_s(connection)
            connection.execute(sa.delete(ENROLMENT_ATTEMPTS).where(rows.began_s <= now_s - self._window_s))
            counted = insert(connection, ENROLMENT_ATTEMPTS).values(address=key, began_s=now_s, failures=1)
            more = sa.case((rows.failures > self._limit, rows.failures), else_=rows.failures + 1)
            counted = counted.on_conflict_do_update(index_elements=["address"], set_={"failures": more})
            failures = connection.execute(counted.returning(rows.failures)).scalar_one()
            latest = sa.select(rows.address).order_by(rows.began_s.desc(), rows.address)
            too_many = latest.offset(self._max_addresses)
            connection.execute(sa.delete(ENROLMENT_ATTEMPTS).where(rows.address.in_(too_many)))
        if failures > self._limit:
            raise too_many_attempts()

    def forgive(self, address: str) -> None:
        """Take back an attempt that succeeded."""
        rows = ENROLMENT_ATTEMPTS.c
        counted = sa.update(ENROLMENT_ATTEMPTS).where(rows.address == address_group(address), rows.failures > 0)
        with self._database.writing() as connection:
            connection.execute(counted.values(failures=rows.failures - 1))


@dataclass
class _Share:
    """Places of this server for one client. ``until_s``: on the monotonic clock; ``peak``: since the last look."""

    slots: int = 0
    used: int = 0
    peak: int = 0
    until_s: float = 0.0


class LeasedShares:
    """Up to ``share`` requests at once of each client, on all servers together.

    A server leases places for a client in the database and gives them back a second or two after they were used, so
    that a client that sends on waits for the database once. A lease that is not renewed ends after 10 seconds. The sum
    of all leases never exceeds the share. While the database is away, each server allows the share by itself.
    """

    def __init__(
        self,
        database: Database,
        share: int,
        *,
        now_s: DatabaseTime = database_time_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._share, self._now_s, self._clock = database, share, now_s, clock
        self._replica = secrets.token_hex(8)
        self._leasing = threading.Lock()  # one lease at a time is asked for
        self._lock = threading.Lock()  # guards all that follows
        self._shares: dict[str, _Share] = {}
        self._away_until_s = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Renew and give back leases in the background until ``close``."""
        self._thread = threading.Thread(target=self._run, name="shares", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give back all leases. Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_RENEW_S)
        try:
            with self._database.writing() as connection:
                connection.execute(sa.delete(SHARE_LEASES).where(SHARE_LEASES.c.replica == self._replica))
        except StorageError:
            pass  # they end by themselves

    def take(self, client: str) -> bool:
        """Take a place for a request; False if the share is used up."""
        if self._take_leased(client):
            return True
        with self._leasing:
            return self._take_leased(client) or self._take_new(client)

    def give_back(self, client: str) -> None:
        """The request is over."""
        with self._lock:
            self._shares[client].used -= 1

    def renew(self) -> None:
        """Keep what was used since the last call, and give back the rest (StorageError)."""
        with self._lock:
            wanted = {client: max(one.peak, one.used) for client, one in self._shares.items()}
            for one in self._shares.values():
                one.peak = one.used
        for client, slots in wanted.items():
            with self._leasing:
                with self._lock:
                    slots = max(slots, self._shares[client].used)
                self._set(client, slots)

    def _take_leased(self, client: str) -> bool:
        with self._lock:
            one = self._shares.get(client)
            if one is None or one.used >= one.slots or self._clock() >= one.until_s:
                return False
            self._use(one)
            return True

    def _take_new(self, client: str) -> bool:
        with self._lock:
            wanted = self._shares.setdefault(client, _Share()).used + 1
            away = self._clock() < self._away_until_s
        try:
            granted = wanted <= self._share and (away or self._set(client, wanted))
        except StorageError as error:
            _log.warning("clients' shares are kept by this server alone for now: %s", error)
            granted = True
            with self._lock:
                self._away_until_s = self._clock() + _AWAY_S
        if granted:
            with self._lock:
                self._use(self._shares[client])
        return granted

    @staticmethod
    def _use(one: _Share) -> None:
        one.used += 1
        one.peak = max(one.peak, one.used)

    def _set(self, client: str, slots: int) -> bool:
        """Lease so many places; False, and nothing changes, if others have too many."""
        until_s = self._clock() + _LEASE_S
        leases = SHARE_LEASES.c
        with self._database.writing() as connection:
            _take_turns(connection, client)
            now_s = self._now_s(connection)
            others = connection.execute(
                sa.select(sa.func.coalesce(sa.func.sum(leases.slots), 0)).where(
                    leases.client == client, leases.replica != self._replica, leases.expires_s > now_s
                )
            ).scalar_one()
            if slots and others + slots > self._share:
                return False
            mine = sa.and_(leases.client == client, leases.replica == self._replica)
            connection.execute(sa.delete(SHARE_LEASES).where(sa.or_(mine, leases.expires_s <= now_s)))
            if slots:
                row = {"client": client, "replica": self._replica, "slots": slots, "expires_s": now_s + _LEASE_S}
                connection.execute(sa.insert(SHARE_LEASES), row)
        with self._lock:
            one = self._shares[client]
            one.slots, one.until_s = slots, until_s
            if not slots and not one.used:
                del self._shares[client]
        return True

    def _run(self) -> None:
        while not self._closed.wait(_RENEW_S):
            try:
                self.renew()
            except StorageError:
                with self._lock:
                    self._away_until_s = self._clock() + _AWAY_S
            except Exception:
                _log.exception("renewing shares failed")


def _take_turns(connection: sa.Connection, client: str) -> None:
    """Have transactions on one client take turns. SQLite's writers do anyway."""
    if connection.dialect.name == POSTGRESQL:
        key = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))

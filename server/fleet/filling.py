"""Counting devices whose lines were stored before there were aggregates: one transaction for each, in the background.

Any number of servers may do it at once, and a server that ends in the middle leaves the rest to the next one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import sqlalchemy as sa

from device_sdk.errors import StorageError
from server.fleet.aggregates import Aggregates
from server.state.database import Database
from server.state.log_store import lock_device
from server.state.tables import FLEET_DEVICES, LOG_LINES

_log = logging.getLogger(__name__)

_RETRY_S = 5.0


class Filling:
    """A thread that counts what is not counted yet, and then ends. Thread-safe."""

    def __init__(self, database: Database, aggregates: Aggregates) -> None:
        self._database, self._aggregates = database, aggregates
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._left = 0

    @property
    def devices_left(self) -> int:
        """Devices that are not counted yet."""
        return self._left

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def close(self) -> None:
        """End after the device that is being counted. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._fill()
                return
            except StorageError as error:
                _log.warning("devices cannot be counted now: %s", error)
                self._stop.wait(_RETRY_S)

    def _fill(self) -> None:
        devices = devices_with_lines(self._database, uncounted=True)
        for number, device in enumerate(devices):
            self._left = len(devices) - number
            if self._stop.is_set():
                return
            count_again(self._database, self._aggregates, device, only_if=_is_uncounted)
        self._left = 0


def devices_with_lines(database: Database, *, uncounted: bool = False) -> list[str]:
    """Devices that have lines, or only those without a row, found by steps through an index, not by all lines."""
    lines, counted = LOG_LINES.c, FLEET_DEVICES.c
    step = sa.select(sa.func.min(lines.device).label("device")).cte("step", recursive=True)
    following = sa.select(sa.func.min(lines.device)).where(lines.device > step.c.device).correlate(step)
    step = step.union_all(sa.select(following.scalar_subquery()).where(step.c.device.is_not(None)))
    query = sa.select(step.c.device).where(step.c.device.is_not(None))
    if uncounted:
        query = query.where(~sa.select(counted.device).where(counted.device == step.c.device).exists())
    with database.reading() as connection:
        return list(connection.execute(query).scalars())


def count_again(
    database: Database,
    aggregates: Aggregates,
    device: str,
    *,
    only_if: Callable[[sa.Connection, str], bool] = lambda connection, device: True,
) -> None:
    """Count all lines of a device, in a transaction, if ``only_if`` says so there."""
    with database.writing() as connection:
        lock_device(connection, device)
        if only_if(connection, device):
            aggregates.recount(connection, device)


def _is_uncounted(connection: sa.Connection, device: str) -> bool:
    counted = sa.select(FLEET_DEVICES.c.device).where(FLEET_DEVICES.c.device == device)
    return connection.execute(counted).first() is None

"""Waiting for sockets: waitress's loop, in rounds whose cost grows with the events, not with the connections."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping
from typing import Any

from waitress import wasyncore

_READING, _WRITING = select.POLLIN | select.POLLPRI, select.POLLOUT


class Polling:
    """Waits for events of ``channels``, by file descriptor, and lets them handle theirs, as ``wasyncore.poll2`` does.

    ``poll2`` reads in every round of every channel if it is readable and writable. Here a channel is read again after
    an event of its own and after ``note``, which whatever changes it otherwise must call.
    """

    def __init__(self, channels: Mapping[int, Any]) -> None:
        self._channels = channels
        self._poll = select.poll()
        self._wanted: dict[int, int] = {}  # events by file descriptor, as registered
        self._noted: deque[int] = deque()

    def note(self, descriptor: int) -> None:
        """The channel may have changed. Safe in any thread; one that is not the loop's then wakes the loop."""
        self._noted.append(descriptor)

    def note_all(self) -> None:
        """All channels may have changed."""
        self._noted.extend({*self._channels, *self._wanted})

    def round(self, timeout_s: float) -> None:
        """Wait for events, for ``timeout_s`` at most, and handle them."""
        while self._noted:
            self._register(self._noted.popleft())
        for descriptor, events in self._poll.poll(int(1000 * timeout_s)):
            channel = self._channels.get(descriptor)
            if channel is not None:
                wasyncore.readwrite(channel, events)
            self._noted.append(descriptor)

    def _register(self, descriptor: int) -> None:
        channel = self._channels.get(descriptor)
        wanted = 0 if channel is None else _wanted_by(channel)
        known = self._wanted.pop(descriptor, 0)
        if wanted:
            self._wanted[descriptor] = wanted
        if wanted and wanted != known:
            self._poll.register(descriptor, wanted)
        elif known and not wanted:
            self._poll.unregister(descriptor)


def _wanted_by(channel: Any) -> int:
    wanted = _READING if channel.readable() else 0
    return wanted | (_WRITING if channel.writable() and not channel.accepting else 0)

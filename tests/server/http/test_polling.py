from __future__ import annotations

import socket

import pytest

from server.http.polling import Polling


class Channel:
    """A channel over one end of a socket pair, as waitress's are, that counts how often it is looked at."""

    accepting = False

    def __init__(self, end):
        self.socket = end
        self.looked, self.read, self.wrote, self.closed = 0, [], 0, False
        self.reads, self.writes = True, False

    def readable(self):
        self.looked += 1
        return self.reads

    def writable(self):
        return self.writes

    def handle_read_event(self):
        self.read.append(self.socket.recv(100))

    def handle_write_event(self):
        self.wrote += 1
        self.writes = False

    def handle_close(self):
        self.closed = True


@pytest.fixture
def pairs():
    pairs = [socket.socketpair() for _ in range(5)]
    yield pairs
    for pair in pairs:
        for end in pair:
            end.close()


@pytest.fixture
def polled(pairs):
    channels = {ours.fileno(): Channel(ours) for ours, _ in pairs}
    polling = Polling(channels)
    polling.note_all()
    return polling, channels


def test_what_a_client_sends_is_read_by_its_channel(pairs, polled):
    polling, channels = polled
    ours, theirs = pairs[2]
    theirs.send(b"hello")
    polling.round(1)
    assert channels[ours.fileno()].read == [b"hello"]
    assert sum(len(channel.read) for channel in channels.values()) == 1


def test_only_channels_with_events_and_noted_ones_are_looked_at_again(pairs, polled):
    polling, channels = polled
    polling.round(0)
    pairs[0][1].send(b"x")
    polling.round(1)
    polling.note(pairs[1][0].fileno())
    polling.round(0)
    assert [channels[ours.fileno()].looked for ours, _ in pairs] == [2, 2, 1, 1, 1]


def test_a_channel_that_became_writable_writes_once_noted(pairs, polled):
    polling, channels = polled
    polling.round(0)
    descriptor = pairs[3][0].fileno()
    channels[descriptor].writes = True
    polling.round(0)
    assert channels[descriptor].wrote == 0
    polling.note(descriptor)
    polling.round(0)
    polling.round(0)
    assert channels[descriptor].wrote == 1


def test_a_channel_that_reads_no_more_gets_no_events(pairs, polled):
    polling, channels = polled
    ours, theirs = pairs[0]
    channels[ours.fileno()].reads = False
    theirs.send(b"x")
    polling.round(0)
    assert channels[ours.fileno()].read == []
    channels[ours.fileno()].reads = True
    polling.note(ours.fileno())
    polling.round(1)
    assert channels[ours.fileno()].read == [b"x"]


def test_a_channel_that_has_gone_is_forgotten_and_its_number_serves_the_next(pairs, polled):
    polling, channels = polled
    polling.round(0)
    ours, theirs = pairs[4]
    descriptor = ours.fileno()
    gone = channels.pop(descriptor)
    theirs.send(b"late")
    polling.round(0)  # an event of a descriptor without a channel
    assert gone.read == []
    channels[descriptor] = Channel(ours)
    polling.note(descriptor)
    polling.round(1)
    assert channels[descriptor].read == [b"late"]


def test_a_closed_socket_does_not_keep_the_loop_awake(pairs, polled):
    polling, channels = polled
    polling.round(0)
    ours, _ = pairs[1]
    channels.pop(ours.fileno())
    ours.close()
    polling.round(0)
    polling.round(0)
    assert all(channel.looked == 1 for channel in channels.values())

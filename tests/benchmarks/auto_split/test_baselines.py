from __future__ import annotations

import pytest

from benchmarks.auto_split.baselines import device_alone, neurosurgeon, server_with_jpeg, uniform_split
from benchmarks.auto_split.problem import server_alone
from device_sdk.errors import UsageError


def test_a_jpeg_shortens_the_transfer_and_takes_time_to_code(chain):
    problem = chain(3)
    raw, jpeg = server_alone(problem), server_with_jpeg(problem, ratio=5, coding_ms=2.0)
    assert jpeg.transfer_ms == pytest.approx(raw.transfer_ms / 5)
    assert jpeg.latency_ms == pytest.approx(jpeg.transfer_ms + 2.0 + raw.server_ms)
    with pytest.raises(UsageError):
        server_with_jpeg(problem, ratio=0)


def test_neurosurgeon_takes_the_fastest_position_at_one_precision(chain):
    for mbps in (0.001, 0.1, 10):
        problem = chain(4, mbps=mbps)
        every = [uniform_split(problem, position, 8) for position in range(5)]
        assert neurosurgeon(problem, 8).latency_ms == min(one.latency_ms for one in every)


def test_on_the_device_alone_nothing_is_sent(chain):
    alone = device_alone(chain(3), 8)
    assert (alone.kind, alone.bytes_sent, alone.transfer_ms, alone.server_ms) == ("device", 0, 0.0, 0.0)
    assert alone.weight_bits == alone.activation_bits == (8, 8, 8)

from __future__ import annotations

import pytest

from device_sdk.policies.measured_splits.region import Region, kind_of
from device_sdk.policies.splitting.path_splits import NO_HANDLING
from device_sdk.progress import SilentProgress
from tests.device_sdk.policies.splitting.codings import coded


class CountingJudge:
    """Fewer bits lose more; nothing else loses anything."""

    def __init__(self):
        self.measured = []

    def drop(self, cost):
        self.measured.append((cost.head, cost.tail, cost.bits))
        return 0.0 if not cost.bits else 0.01 * (8 - cost.bits[0])

    def caution(self, cost):
        return 0.0

    def coding(self, position, bits, per_channel):
        return None if per_channel else coded(error=8.0 - bits)


@pytest.fixture
def region(bundle, slow_profile):
    def make(judge=None, **changes):
        costs = slow_profile.cost_model()
        return Region(bundle, bundle.supernet.original, costs, "tiny:tail", NO_HANDLING, judge, **changes)

    return make


def cells(region, *, uplinks=(0.01, 10.0), factors=(1.0, 100.0), drops=(0.02,), **changes):
    return region.cells(uplinks, factors, drops, progress=SilentProgress(), **changes)


def test_every_uplink_device_and_drop_has_a_cell(region):
    found = cells(region(CountingJudge()), drops=(0.0, 0.02))
    assert len({(one.mbps, one.device_factor, one.max_drop) for one in found}) == len(found) == 8


def test_a_fast_device_behind_a_slow_line_computes_itself_and_a_slow_one_behind_a_fast_line_does_not(region):
    by_place = {(one.mbps, one.device_factor): one for one in cells(region(CountingJudge()))}
    assert by_place[0.01, 1.0].kind == "device"
    assert by_place[10.0, 100.0].kind in ("server", "split")
    for one in by_place.values():
        latencies = sorted(cost.latency_ms for cost in one.fastest.values())
        assert one.best.latency_ms == latencies[0]
        assert one.saving == pytest.approx(1 - latencies[0] / latencies[1])


def test_the_drop_decides_the_bits(region):
    def bits(drop):
        (one,) = cells(region(CountingJudge()), uplinks=(10.0,), factors=(100.0,), drops=(drop,))
        return one.best.bits

    assert bits(0.0) == (8,)
    assert bits(0.021) == (6,)


def test_without_samples_values_cross_in_eight_bits(region):
    found = cells(region(), uplinks=(10.0,), factors=(1.0, 100.0), drops=(0.02,))
    assert [one.max_drop for one in found] == [None, None]
    assert {cost.bits for one in found for cost in one.fastest.values()} <= {(), (8,)}


def test_what_may_not_be_sent_is_no_kind(region):
    found = cells(region(CountingJudge(), sends_input=False))
    assert all("server" not in one.fastest for one in found)


def test_without_time_the_rest_is_said_to_be_unknown(region):
    assert any(one.not_measured for one in cells(region(CountingJudge()), measured_s=0.0))


def test_kinds_are_told_by_who_computes(region):
    (one,) = cells(region(CountingJudge()), uplinks=(1.0,), factors=(10.0,))
    assert {kind: kind_of(cost) for kind, cost in one.fastest.items()} == {kind: kind for kind in one.fastest}

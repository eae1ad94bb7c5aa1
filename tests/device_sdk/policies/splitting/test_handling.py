from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policies.splitting.path_splits import Handling, TimedCall, corrected, fit_calls, ms_per_byte
from device_sdk.supernet.cost import Uplink

MS = st.floats(-50, 50)


def test_two_calls_tell_what_a_call_and_what_a_byte_takes():
    per_call, per_byte = fit_calls([TimedCall(1_000, 4.0), TimedCall(11_000, 7.0)])
    assert (per_call, per_byte) == (pytest.approx(3.7), pytest.approx(3e-4))
    assert Handling(call_ms=per_call, ms_per_byte=per_byte).beside_codec_ms(6_000) == pytest.approx(5.5)


def test_one_call_gives_what_a_call_takes():
    assert fit_calls([TimedCall(1_000, 4.0)]) == (4.0, 0.0)


@given(calls=st.lists(st.builds(TimedCall, st.integers(1, 100_000), MS), max_size=4), least=st.sampled_from([0, -1e-3]))
def test_a_call_is_never_negative_and_a_byte_keeps_its_bound(calls, least):
    per_call, per_byte = fit_calls(calls, least_per_byte=least)
    assert per_call >= 0
    assert per_byte >= least


def test_calls_that_are_faster_than_the_probes_raise_the_bandwidth():
    probed = Uplink(2.0, 4.0)  # 4 ms per 1,000 bytes
    calls = [TimedCall(size, 1.0 - 0.001 * size) for size in (1_000, 11_000)]
    per_call, per_byte = fit_calls(calls, least_per_byte=-0.9 * ms_per_byte(probed))
    uplink, handling = corrected(probed, Handling(call_ms=per_call, ms_per_byte=per_byte))
    assert handling == Handling(call_ms=pytest.approx(1.0))
    assert uplink.mbps == pytest.approx(8 / 3)
    assert uplink.round_trip_ms == 4.0


def test_errors_count_relative_to_what_a_call_took():
    calls = [TimedCall(1_000, 1.0, 10.0), TimedCall(2_000, 4.0, 10.0), TimedCall(50_000, 9.0, 1_000.0)]
    per_call, per_byte = fit_calls(calls)
    residuals = [abs(one.excess_ms - per_call - per_byte * one.size_bytes) for one in calls]
    assert max(residuals[:2]) < 2.0
    equally, slope = fit_calls([TimedCall(one.size_bytes, one.excess_ms) for one in calls])
    assert sum(residuals[:2]) < sum(abs(one.excess_ms - equally - slope * one.size_bytes) for one in calls[:2])

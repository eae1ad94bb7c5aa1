from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policies.splitting.handling import Handling, TimedCall, fit_calls

MS = st.floats(-50, 50)


def test_two_calls_tell_what_a_call_and_what_a_byte_takes():
    per_call, per_byte = fit_calls([TimedCall(1_000, 4.0), TimedCall(11_000, 7.0)])
    assert (per_call, per_byte) == (pytest.approx(3.7), pytest.approx(3e-4))
    assert Handling(call_ms=per_call, ms_per_byte=per_byte).beside_codec_ms(6_000) == pytest.approx(5.5)


def test_one_call_gives_what_a_call_takes():
    assert fit_calls([TimedCall(1_000, 4.0)]) == (4.0, 0.0)


@given(calls=st.lists(st.builds(TimedCall, st.integers(1, 100_000), MS), max_size=4))
def test_neither_is_ever_negative(calls):
    per_call, per_byte = fit_calls(calls)
    assert per_call >= 0
    assert per_byte >= 0

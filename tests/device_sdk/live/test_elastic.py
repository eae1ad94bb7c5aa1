from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import UsageError
from device_sdk.live.elastic import CapState, ElasticSettings, next_cap
from device_sdk.memory_pressure import MemoryReading

SETTINGS = ElasticSettings(reserve_bytes=100, grow_margin=0.1, grow_after_s=2.0)


def decide(state, available, *, taken=1000, most=2000, ceiling=None, now_s=0.0, stalled=None):
    reading = MemoryReading(available, stalled)
    return next_cap(
        state, reading, taken_bytes=taken, most_bytes=most, ceiling_bytes=ceiling, now_s=now_s, settings=SETTINGS
    )


def test_with_room_there_is_no_cap():
    assert decide(CapState(None), 100) == CapState(None)


def test_the_cap_sinks_at_once_when_the_reserve_is_touched():
    assert decide(CapState(None), 45) == CapState(859)  # 945 with a tenth to spare
    assert decide(CapState(900), 0, taken=850) == CapState(681)


def test_small_changes_below_the_cap_do_not_matter():
    assert decide(CapState(800), 150, taken=780) == CapState(800)


def test_tasks_that_wait_for_memory_shrink_it_too():
    assert decide(CapState(None), 10_000, stalled=0.5) == CapState(681)
    assert decide(CapState(None), 10_000, stalled=0.1) == CapState(None)


def test_it_rises_when_there_has_been_room_for_a_while():
    state = decide(CapState(800), 500, taken=800, now_s=10.0)
    assert state == CapState(800, 10.0)
    state = decide(state, 500, taken=800, now_s=11.9)
    assert state == CapState(800, 10.0)
    assert decide(state, 500, taken=800, now_s=12.0) == CapState(1090)


def test_a_moment_without_room_begins_the_wait_anew():
    state = decide(CapState(800), 500, taken=800, now_s=10.0)
    state = decide(state, 120, taken=800, now_s=11.0)
    assert state == CapState(800)
    assert decide(state, 500, taken=800, now_s=12.5).cap_bytes == 800


def test_with_room_for_all_the_cap_is_the_ceiling_again():
    for ceiling in (None, 5000):
        state = decide(CapState(800), 5000, taken=800, ceiling=ceiling, now_s=10.0)
        assert decide(state, 5000, taken=800, ceiling=ceiling, now_s=13.0) == CapState(ceiling)


def test_it_never_rises_above_the_ceiling():
    assert decide(CapState(800), 99_999, taken=800, ceiling=800, now_s=99.0) == CapState(800)


@given(st.lists(st.integers(0, 3000), max_size=60), st.one_of(st.none(), st.integers(1, 3000)))
def test_the_cap_leaves_the_reserve_and_moves_rarely_in_steady_conditions(rooms, ceiling):
    state, changes = CapState(ceiling), 0
    for number in range(50):
        taken = min(2000, state.cap_bytes if state.cap_bytes is not None else 2000)
        room = rooms[number % len(rooms)] if rooms and number < 25 else 700
        new = decide(state, max(0, room + 100 - taken), taken=taken, ceiling=ceiling, now_s=float(number))
        changes += number > 30 and new.cap_bytes != state.cap_bytes
        if new.cap_bytes is not None and state.cap_bytes is not None and new.cap_bytes < state.cap_bytes:
            assert new.cap_bytes <= max(room, 0) + taken
        state = new
    assert changes <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"reserve_bytes": -1},
        {"stalled_share": 0.0},
        {"stalled_factor": 1.0},
        {"interval_s": 0.0},
        {"grow_after_s": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        ElasticSettings(**wrong)

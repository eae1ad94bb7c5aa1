from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import UsageError
from device_sdk.live.switching import (
    LastSwitch,
    LiveSettings,
    beside,
    bounds_ms,
    decide,
    is_over,
    likely_next,
    off_processor,
    scaled,
)
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost
from device_sdk.supernet.plan import Edge, Plan, Subnet

SETTINGS = LiveSettings(up_cooldown_s=1.0, up_cooldown_max_s=60.0)
BUDGET = Budget(latency_ms=10.0)


def candidate(name: str, latency_ms: float, accuracy: float, peak_bytes: int = 1_000_000) -> Candidate:
    return Candidate(Plan(Subnet((Edge(name),))), Cost(latency_ms=latency_ms, peak_bytes=peak_bytes), accuracy)


def replace_latency(one: Candidate, latency_ms: float) -> Cost:
    return Cost(latency_ms=latency_ms, peak_bytes=one.cost.peak_bytes)


FAST, SMALL, MIDDLE, LARGE, HUGE = POOL = (
    candidate("fast", 2.0, 0.50),
    candidate("small", 4.5, 0.70),
    candidate("middle", 7.0, 0.80),
    candidate("large", 9.0, 0.90),
    candidate("huge", 14.0, 0.95),
)


def decided(
    current, service_ms, *, budget=BUDGET, pool=POOL, now_s=100.0, last=None, settings=SETTINGS, cause="unknown"
):
    return decide(
        current=current,
        pool=pool,
        budget=budget,
        service_ms=service_ms,
        now_s=now_s,
        last=last or LastSwitch(),
        settings=settings,
        cause=cause,
    )


def test_a_subnet_within_the_budget_stays():
    decision = decided(LARGE, [9.5] * 64)
    assert (decision.target, decision.fits) == (None, True)
    assert decision.ratio == pytest.approx(9.5 / 9)


@pytest.mark.parametrize(("ratio", "expected"), [(1.2, MIDDLE), (2.0, SMALL), (4.0, FAST)])
def test_a_slower_device_takes_the_most_accurate_that_fits_the_budget_over_the_drift_ratio(ratio, expected):
    decision = decided(LARGE, [9.0 * ratio] * 60)
    assert (decision.target, decision.why, decision.fits) == (expected, "slower", True)
    assert decision.ratio == pytest.approx(ratio)


def test_a_faster_device_takes_what_was_over_the_budget():
    decision = decided(LARGE, [9.0 * 0.6] * 20)
    assert (decision.target, decision.why) == (HUGE, "faster")


def test_it_goes_back_up_when_the_device_recovers():
    assert decided(SMALL, [4.5] * 20).target == LARGE


def test_the_fastest_runs_when_nothing_fits_and_the_decision_says_so():
    decision = decided(LARGE, [90.0] * 5)
    assert (decision.target, decision.fits) == (FAST, False)
    decision = decided(FAST, [20.0] * 5)
    assert (decision.target, decision.fits) == (None, False)


@pytest.mark.parametrize(("call_ms", "calls"), [(10.4, 153), (12.4, 15), (15.0, 8), (90.0, 5)])
def test_an_excess_sends_it_down_once_it_adds_up_to_30_ms(call_ms, calls):
    calm = [9.5] * 40
    assert decided(LARGE, calm + [call_ms] * (calls - 5)).target is None
    assert decided(LARGE, calm + [call_ms] * calls).why == "slower"
    assert decided(LARGE, calm + [call_ms] * calls).target is not None


def test_the_excess_of_very_short_calls_is_counted_in_calls():
    tiny = [replace(one, cost=replace_latency(one, one.cost.latency_ms / 1000)) for one in POOL]
    budget = Budget(latency_ms=0.01)
    assert decided(tiny[3], [0.02] * 12, pool=tiny, budget=budget).target is None
    assert decided(tiny[3], [0.02] * 18, pool=tiny, budget=budget).target == tiny[0]


def test_noise_around_the_budget_that_evens_out_changes_nothing():
    assert decided(LARGE, [9.8, 10.6] * 128).target is None


def test_less_than_a_window_of_calls_decides_nothing():
    assert decided(LARGE, [50.0] * 4) is None
    assert decided(LARGE, []) is None


@pytest.mark.parametrize("outlier", [500.0, 40.0])
def test_single_outliers_decide_nothing(outlier):
    assert decided(LARGE, [9.0, 9.0, outlier, 9.0, outlier]).target is None


@pytest.mark.parametrize("absurd", [0.0, -3.0, math.nan, math.inf, 1e6])
def test_absurd_times_are_not_looked_at(absurd):
    assert decided(LARGE, [absurd] * 60) is None
    assert decided(LARGE, [9.0] * 5 + [absurd] * 50).target is None
    assert decided(LARGE, [18.0] * 5 + [absurd] * 50).target == SMALL


def test_after_a_switch_it_waits_before_going_down_and_longer_before_going_up():
    last = LastSwitch(at_s=100.0, up_cooldown_s=1.0)
    assert decided(LARGE, [18.0] * 5, now_s=100.05, last=last) is None
    assert decided(LARGE, [18.0] * 5, now_s=100.2, last=last).target == SMALL
    assert decided(SMALL, [4.5] * 20, now_s=100.2, last=last).target is None
    assert decided(SMALL, [4.5] * 20, now_s=101.2, last=last).target == LARGE


def test_a_clock_that_went_backwards_blocks_nothing():
    last = LastSwitch(at_s=1e9, up_cooldown_s=1.0)
    assert decided(LARGE, [18.0] * 5, now_s=0.0, last=last).target == SMALL


def test_calls_that_are_mostly_quick_and_sometimes_very_slow_do_not_send_it_up():
    sliced = [2.0, 2.0, 2.0, 12.0] * 5  # half of the core is gone, in slices
    decision = decided(FAST, sliced)
    assert decision.target in (None, SMALL)  # 4.75 / 2.25: the mean tells
    assert decided(FAST, [2.0] * 20).target == LARGE


def test_a_candidate_that_fits_by_a_hair_does_not_make_it_go_to_and_fro():
    ratio = 0.99 * 10.0 / 14.0  # huge would take 9.9 of the 10 ms
    assert decided(LARGE, [9.0 * ratio] * 20).target is None


def test_a_switch_up_that_did_not_last_doubles_the_wait_and_one_that_did_resets_it():
    last = LastSwitch()
    for number, wait_s in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]):
        last = last.followed_by("faster", now_s=1000.0 * number, settings=SETTINGS)
        assert last.up_cooldown_s == wait_s
        last = last.followed_by("slower", now_s=1000.0 * number + wait_s, settings=SETTINGS)
    last = last.followed_by("faster", now_s=1e6, settings=SETTINGS)
    last = last.followed_by("slower", now_s=2e6, settings=SETTINGS)
    assert last.up_cooldown_s == SETTINGS.up_cooldown_s


def test_memory_limits_what_can_be_taken():
    budget = Budget(latency_ms=10.0, memory_mb=4.0)
    big = candidate("big", 4.0, 0.99, peak_bytes=5_000_000)
    assert decided(LARGE, [18.0] * 5, budget=budget, pool=[*POOL, big]).target == SMALL
    only = [LARGE, candidate("fast and big", 1.0, 0.9, peak_bytes=5_000_000)]
    assert decided(LARGE, [90.0] * 5, budget=budget, pool=only).target is None


def test_what_does_not_fit_beside_the_plan_in_use_cannot_be_prepared():
    small, big = candidate("small", 1.0, 0.5, 1_000_000), candidate("big", 2.0, 0.6, 3_000_000)
    assert beside(big, [small, big], Budget(latency_ms=1.0, memory_mb=4.0)) == [small]
    assert beside(big, [small, big], Budget(latency_ms=1.0)) == [small, big]


def test_what_is_prepared_ahead_is_what_a_slower_and_a_normal_device_would_take():
    assert likely_next(LARGE, POOL, BUDGET, 1.0, SETTINGS) == [SMALL, MIDDLE, FAST]
    assert likely_next(SMALL, POOL, BUDGET, 2.0, SETTINGS)[0] == FAST
    assert LARGE in likely_next(SMALL, POOL, BUDGET, 2.0, SETTINGS)


def test_settings_that_make_no_sense_are_refused():
    for settings in ({"window": 0}, {"up_window": 0}, {"margin": 1.0}, {"margin": -0.1}):
        with pytest.raises(UsageError):
            LiveSettings(**settings)


ratios = st.floats(0.05, 20.0)


@st.composite
def pools(draw):
    count = draw(st.integers(1, 8))
    return [
        candidate(f"c{n}", draw(st.floats(0.5, 40.0)), draw(st.integers(0, 100)) / 100, draw(st.integers(1, 9)) * 10**6)
        for n in range(count)
    ]


@given(pool=pools(), ratio=ratios, data=st.data())
def test_a_target_always_fits_unless_the_decision_says_that_none_does(pool, ratio, data):
    current = data.draw(st.sampled_from(pool))
    decision = decided(current, [current.cost.latency_ms * ratio] * 64, pool=pool)
    if decision.target is None:
        return
    assert decision.target.subnet != current.subnet
    allowed = scaled(BUDGET, decision.ratio, SETTINGS)
    if decision.fits:
        assert allowed.fits(decision.target.cost)
        assert all(one.accuracy <= decision.target.accuracy for one in pool if allowed.fits(one.cost))
    else:
        assert not any(allowed.fits(one.cost) for one in pool)
        assert decision.target.cost.latency_ms == min(one.cost.latency_ms for one in pool)


@given(pool=pools(), ratio=ratios, data=st.data())
def test_on_a_device_that_does_not_change_the_decisions_settle(pool, ratio, data):
    current = data.draw(st.sampled_from(pool))
    last, now_s, visited = LastSwitch(), 0.0, []
    for _ in range(12):
        now_s += 1000.0
        decision = decided(current, [current.cost.latency_ms * ratio] * 64, pool=pool, now_s=now_s, last=last)
        if decision.target is None:
            break
        visited.append(current.subnet)
        assert decision.target.subnet not in visited
        last = last.followed_by(decision.why, now_s=now_s, settings=SETTINGS)
        current = decision.target
    assert decision.target is None
    assert len(visited) <= 2


@given(pool=pools(), service_ms=st.floats(0.01, 100.0), data=st.data())
def test_within_its_bounds_a_call_gives_no_reason_to_decide_anything(pool, service_ms, data):
    current = data.draw(st.sampled_from(pool))
    low_ms, high_ms = bounds_ms(current, pool, BUDGET, SETTINGS)
    if low_ms <= service_ms <= high_ms and service_ms > low_ms * (1 + 1e-9):
        decision = decided(current, [service_ms] * 64, pool=pool)
        assert decision is None or decision.target is None


def test_after_any_time_of_flapping_the_way_up_is_open_again_within_a_second():
    settings, last = LiveSettings(), LastSwitch()
    for number in range(100):
        last = last.followed_by("faster", now_s=float(number), settings=settings)
        last = last.followed_by("slower", now_s=number + 0.1, settings=settings)
    assert last.up_cooldown_s <= 1.0


def test_expected_accuracies_decide_about_going_up_never_one_that_was_only_measured():
    lucky = replace(candidate("fast", 5.0, 0.93), expected=0.85)  # the best of many on few samples
    steady = replace(candidate("large", 9.0, 0.90), expected=0.89)
    found = decide(
        current=lucky,
        pool=[lucky, steady],
        budget=Budget(latency_ms=10.0),
        service_ms=[5.0] * 20,
        now_s=1e6,
        last=LastSwitch(),
        settings=SETTINGS,
    )
    assert found.target == steady


@pytest.mark.parametrize("cause", ["throttled", "power_mode"])
def test_a_cause_that_lasts_is_believed_before_an_excess_adds_up(cause):
    slow = [9.5] * 40 + [12.0] * 5
    assert decided(LARGE, slow).target is None
    assert decided(LARGE, slow, cause="load").target is None
    assert decided(LARGE, slow, cause=cause).target == MIDDLE
    assert decided(LARGE, [9.5] * 40, cause=cause).target is None


def test_going_up_again_waits_longer_after_a_cause_that_lasts_than_after_load():
    for cause, wait_s in [("load", 1.0), ("unknown", 1.0), ("throttled", 30.0), ("power_mode", 30.0)]:
        last = LastSwitch().followed_by("slower", now_s=100.0, settings=SETTINGS, cause=cause)
        assert decided(SMALL, [4.5] * 20, now_s=99.9 + wait_s, last=last).target is None
        assert decided(SMALL, [4.5] * 20, now_s=100.1 + wait_s, last=last).target == LARGE


def test_a_switch_up_forgets_the_cause():
    last = LastSwitch().followed_by("slower", now_s=0.0, settings=SETTINGS, cause="throttled")
    assert last.followed_by("faster", now_s=40.0, settings=SETTINGS).cause == "unknown"


def at_home(one: Candidate, home: str) -> Candidate:
    edges = tuple(msgspec.structs.replace(edge, home=home) for edge in one.subnet.edges)
    return replace(one, plan=Plan(Subnet(edges)))


def test_a_home_that_is_slow_alone_slows_only_the_candidates_that_use_it():
    on_npu, pool = at_home(LARGE, "qnn-1t"), [FAST, SMALL, at_home(MIDDLE, "cpu-2t"), at_home(LARGE, "qnn-1t")]
    assert [off_processor(one) for one in pool] == [False, False, False, True]
    slow = [9.0 * 3] * 20
    assert decided(on_npu, slow, pool=pool).target == FAST
    found = decided(on_npu, slow, pool=pool, cause="home")
    assert found.target == pool[2]
    assert found.expected_ms(pool[2]) == 7.0
    assert found.expected_ms(on_npu) == pytest.approx(27.0)


def test_where_all_use_the_slow_home_the_fastest_runs():
    pool = [at_home(one, "qnn-1t") for one in (FAST, LARGE)]
    found = decided(pool[1], [90.0] * 20, pool=pool, cause="home")
    assert (found.target, found.fits) == (pool[0], False)
    assert found.expected_ms(pool[0]) == pytest.approx(20.0)


def test_calls_are_over_the_budget_by_the_median_of_the_last_ones():
    assert is_over(LARGE, [9.0] * 20 + [10.5] * 5, BUDGET, SETTINGS)
    assert not is_over(LARGE, [9.0] * 20 + [10.5] * 2, BUDGET, SETTINGS)
    assert not is_over(LARGE, [99.0] * 4, BUDGET, SETTINGS)

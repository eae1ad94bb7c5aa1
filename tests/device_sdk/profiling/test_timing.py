from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import MeasurementError
from device_sdk.profiling.timing import (
    Latency,
    Patience,
    interruptions,
    measure,
    measure_interleaved,
    waited_for_processor_ns,
)


def nothing() -> int:
    """No call is interrupted."""
    return 0


class Workbench:
    """A clock that only moves while one of its calls is working."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: list[str] = []

    def clock(self) -> int:
        return self.now_ns

    def work(self, name: str, *durations_ms: float) -> None:
        index = self.calls.count(name)
        self.calls.append(name)
        self.now_ns += round(durations_ms[index % len(durations_ms)] * 1e6)


def rounds_of(calls: list[str], count: int) -> list[list[str]]:
    """The order of turns in each timed round: those who are several have two calls a turn."""
    if count > 1:
        assert calls[::2] == calls[1::2]
        calls = calls[::2]
    return [calls[start : start + count] for start in range(0, len(calls), count)]


def test_latency_is_a_median_with_its_spread() -> None:
    bench = Workbench()
    latency = measure(lambda: bench.work("a", 5, 1, 2, 3, 4), runs=5, warmup=0, clock=bench.clock)
    assert latency == Latency(median_ms=3, p95_ms=pytest.approx(4.8), p25_ms=2, p75_ms=4, runs=5, elapsed_ms=3)


def test_warmup_runs_but_does_not_count() -> None:
    bench = Workbench()
    latency = measure(lambda: bench.work("a", 100, 100, 1, 1), runs=2, warmup=2, clock=bench.clock)
    assert bench.calls == ["a"] * 4
    assert latency.p95_ms == pytest.approx(1)


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 3))
def test_everyone_has_one_turn_per_round_and_starts_equally_often(count: int, rounds: int, warmup: int) -> None:
    bench = Workbench()
    names = "abcde"[:count]
    calls = {name: (lambda name=name: bench.work(name, 1)) for name in names}
    latencies = measure_interleaved(calls, rounds=rounds, warmup=warmup, clock=bench.clock, interruptions=nothing)

    assert {latency.runs for latency in latencies.values()} == {rounds}
    turns = rounds_of(bench.calls[warmup * count :], count)
    assert len(turns) == rounds
    assert all(sorted(turn) == list(names) for turn in turns)
    starts = Counter(turn[0] for turn in turns)
    if rounds % count == 0:
        assert set(starts.values()) == {rounds // count}


def test_nobody_always_follows_the_same_neighbour() -> None:
    bench = Workbench()
    calls = {name: (lambda name=name: bench.work(name, 1)) for name in "abc"}
    measure_interleaved(calls, rounds=6, warmup=0, clock=bench.clock, interruptions=nothing)
    turns = rounds_of(bench.calls, 3)
    before_b = {turn[turn.index("b") - 1] for turn in turns if turn[0] != "b"}
    assert before_b == {"a", "c"}


def test_what_a_competitor_leaves_in_the_caches_is_not_timed() -> None:
    bench = Workbench()

    def call(name: str) -> None:
        bench.work(name, 1 if bench.calls[-1:] == [name] else 9)

    calls = {name: (lambda name=name: call(name)) for name in "abc"}
    timed = measure_interleaved(calls, rounds=6, warmup=1, clock=bench.clock, interruptions=nothing)
    assert [latency.p95_ms for latency in timed.values()] == [1, 1, 1]


def test_drift_hits_all_competitors_alike() -> None:
    bench = Workbench()
    slowing = [1 + step / 200 for step in range(200)]
    calls = {
        "one": lambda: bench.work("one", *slowing),
        "two": lambda: bench.work("two", *(2 * ms for ms in slowing)),
    }
    latencies = measure_interleaved(calls, rounds=100, warmup=0, clock=bench.clock, interruptions=nothing)
    assert latencies["two"].median_ms / latencies["one"].median_ms == pytest.approx(2)


@pytest.mark.parametrize(("runs", "warmup"), [(0, 0), (1, -1)])
def test_nothing_to_measure_is_refused(runs: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="at least 1 round"):
        measure(lambda: None, runs=runs, warmup=warmup)


def test_no_competitors_give_no_latencies() -> None:
    assert measure_interleaved({}, rounds=3, warmup=1) == {}


def test_calls_that_were_interrupted_count_for_p95_only() -> None:
    bench, interrupted = Workbench(), [0]

    def call() -> None:
        index = len(bench.calls)
        interrupted[0] += index % 2
        bench.work("a", 9 if index % 2 else 2)

    timed = measure_interleaved(
        {"a": call}, rounds=20, warmup=0, clock=bench.clock, interruptions=lambda: interrupted[0]
    )
    assert timed["a"] == Latency(median_ms=2, p95_ms=9, p25_ms=2, p75_ms=2, runs=20, elapsed_ms=5.5)


def test_where_every_call_is_interrupted_the_quickest_count() -> None:
    bench = Workbench()
    timed = measure_interleaved(
        {"a": lambda: bench.work("a", 4, 6)},
        rounds=20,
        warmup=0,
        clock=bench.clock,
        interruptions=lambda: len(bench.calls),
    )
    assert (timed["a"].median_ms, timed["a"].p95_ms) == (4, 6)


def test_waiting_for_a_processor_does_not_count_as_the_calls_time() -> None:
    """As with a busy process on every core: a long call waits between its time slices, a short one fits into one."""
    bench, waited_ns = Workbench(), [0]

    def work(name: str, ms: float, waits_ms: float) -> None:
        waited_ns[0] += round(waits_ms * 1e6)
        bench.work(name, ms + waits_ms)

    calls = {"full": lambda: work("full", 10, 12), "half": lambda: work("half", 5, 4 * (len(bench.calls) % 8 == 7))}
    latencies = measure_interleaved(
        calls,
        rounds=20,
        warmup=0,
        reference="full",
        clock=bench.clock,
        interruptions=lambda: len(bench.calls),
        waited_ns=lambda: waited_ns[0],
    )
    full, half = latencies["full"], latencies["half"]
    assert half.ratio is not None
    assert (full.median_ms, half.median_ms, half.ratio.value) == (10, 5, pytest.approx(0.5))
    assert (full.elapsed_ms, full.p95_ms) == (22, 22)


def test_calls_on_several_threads_wait_for_their_own_which_counts() -> None:
    bench, waited_ns = Workbench(), [0]

    def work(name: str, ms: float, waits_ms: float) -> None:
        waited_ns[0] += round(waits_ms * 1e6)
        bench.work(name, ms + waits_ms)

    latencies = measure_interleaved(
        {"one": lambda: work("one", 10, 2), "two": lambda: work("two", 6, 5)},
        rounds=20,
        warmup=0,
        reference="one",
        clock=bench.clock,
        interruptions=lambda: len(bench.calls),
        waited_ns=lambda: waited_ns[0],
        waiting=["two"],
    )
    one, two = latencies["one"], latencies["two"]
    assert two.ratio is not None
    assert (one.median_ms, two.median_ms, two.ratio.value) == (10, 11, pytest.approx(1.1))


def test_the_system_counts_the_time_without_a_processor() -> None:
    before_ns = waited_for_processor_ns()
    assert before_ns >= 0
    assert waited_for_processor_ns() >= before_ns


def test_the_system_counts_interruptions_of_this_thread() -> None:
    before = interruptions()
    assert before >= 0
    assert interruptions() >= before


@pytest.mark.parametrize(
    ("durations_ms", "limit_s", "rounds"),
    [((2,), 1e9, 10), ((1, 3), 1e9, 40), ((1, 3), 0.025, 13), ((2,), 0.0, 10)],
    ids=["settled", "never settled", "time is over", "no time"],
)
def test_patience_ends_when_medians_are_settled_or_time_is_over(durations_ms, limit_s, rounds) -> None:
    bench = Workbench()
    timed = measure_interleaved(
        {"a": lambda: bench.work("a", *durations_ms)},
        rounds=40,
        warmup=0,
        patience=Patience(rounds=10, precision=0.01, limit_s=limit_s),
        clock=bench.clock,
        interruptions=nothing,
    )
    assert timed["a"].runs == rounds


def test_a_clock_that_is_set_back_now_and_then_loses_these_calls_only() -> None:
    bench = Workbench()
    timed = measure_interleaved(
        {"a": lambda: bench.work("a", 2, 2, 2, -1000)}, rounds=40, warmup=0, clock=bench.clock, interruptions=nothing
    )
    assert timed["a"] == Latency(median_ms=2, p95_ms=2, p25_ms=2, p75_ms=2, runs=30, elapsed_ms=2)


@pytest.mark.parametrize("durations_ms", [(0,), (-1,), (2, -1), (2, 0, 0)])
def test_a_clock_that_stands_still_or_is_set_back_most_of_the_time_is_an_error(durations_ms) -> None:
    bench = Workbench()
    with pytest.raises(MeasurementError, match="took any time") as caught:
        measure(lambda: bench.work("a", *durations_ms), runs=30, warmup=0, clock=bench.clock)
    assert caught.value.hint


def test_every_round_is_told() -> None:
    told: list[None] = []
    measure_interleaved({"a": lambda: None}, rounds=4, warmup=2, on_round=lambda: told.append(None))
    assert len(told) == 6


def test_a_ratio_comes_from_calls_of_one_round_so_that_drift_cancels() -> None:
    """The device becomes four times slower in the middle."""
    bench = Workbench()
    speeds = [1.0] * 10 + [4.0] * 10
    calls = {
        "full": lambda: bench.work("full", *(10 * speed for speed in speeds for _ in range(2))),
        "half": lambda: bench.work("half", *(5 * speed for speed in speeds for _ in range(2))),
    }
    latencies = measure_interleaved(
        calls, rounds=20, warmup=0, reference="full", clock=bench.clock, interruptions=nothing
    )
    ratio = latencies["half"].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    assert ratio.relative_error < 0.01
    assert latencies["full"].ratio is not None
    assert latencies["full"].ratio.value == pytest.approx(1.0)


def test_interrupted_calls_make_no_pair() -> None:
    bench, interrupted = Workbench(), Counter[str]()

    def work(name: str, ms: float) -> None:
        slow = len(bench.calls) % 5 == 3
        interrupted["all"] += slow
        bench.work(name, ms * (10 if slow else 1))

    calls = {"full": lambda: work("full", 10), "half": lambda: work("half", 5)}
    latencies = measure_interleaved(
        calls, rounds=40, warmup=0, reference="full", clock=bench.clock, interruptions=lambda: interrupted["all"]
    )
    assert latencies["half"].ratio is not None
    assert latencies["half"].ratio.value == pytest.approx(0.5)


def test_paced_calls_are_made_once_after_a_pause() -> None:
    bench, slept_s = Workbench(), list[float]()
    calls = {name: (lambda name=name: bench.work(name, 1)) for name in "ab"}
    measure_interleaved(calls, rounds=3, warmup=1, pause_s=0.05, clock=bench.clock, sleep=slept_s.append)
    assert len(bench.calls) == 2 + 6
    assert slept_s == [0.05] * 6


def test_another_percentile_than_the_median_is_taken_on_request() -> None:
    bench = Workbench()
    calls = {"a": lambda: bench.work("a", *range(1, 101))}
    latency = measure_interleaved(
        calls, rounds=100, warmup=0, percentile=90.0, clock=bench.clock, interruptions=nothing
    )["a"]
    assert latency.at_percentile_ms == pytest.approx(90.1)
    assert latency.median_ms == pytest.approx(50.5)

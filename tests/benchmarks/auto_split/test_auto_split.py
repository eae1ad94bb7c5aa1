from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.auto_split.auto_split import choose, feasible_solutions, potential_splits
from benchmarks.auto_split.baselines import device_alone
from benchmarks.auto_split.problem import evaluate, keeps_limits, server_alone, uniform_bits
from device_sdk.errors import UsageError


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_solutions_keep_memory_and_error(data, problems, every_solution):
    problem = data.draw(problems)
    found = feasible_solutions(problem)
    assert all(keeps_limits(problem, one) for one in found)
    assert min(one.latency_ms for one in every_solution(problem)) <= found[0].latency_ms + 1e-9


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_fastest_is_never_slower_than_device_or_server_alone(data, problems):
    problem = data.draw(problems)
    fastest = feasible_solutions(problem)[0]
    assert fastest.latency_ms <= server_alone(problem).latency_ms
    for bits in problem.widths:
        alone = device_alone(problem, bits)
        if keeps_limits(problem, alone):
            assert fastest.latency_ms <= alone.latency_ms + 1e-9


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_position_is_dropped_only_where_the_fewest_bits_neither_fit_nor_pay(data, problems):
    problem = data.draw(problems)
    kept = potential_splits(problem)
    assert kept[0] == 0
    for position in set(range(1, problem.graph.count + 1)) - set(kept):
        crossing = problem.graph.crossing(position) if position < problem.graph.count else ()
        bits = uniform_bits(problem.graph, position, min(problem.widths))
        smallest = evaluate(problem, position, *bits, (min(problem.sent_widths),) * len(crossing))
        too_large = smallest.peak_bytes > problem.memory_bytes
        assert too_large or smallest.transfer_ms > server_alone(problem).transfer_ms


def test_the_sent_bits_differ_from_the_computed_ones(chain):
    found = feasible_solutions(chain(3, mbps=0.001))
    split = next(one for one in found if one.kind == "split" and min(one.activation_bits) == 8)
    assert split.sent_bits == (2,)


def test_the_fastest_within_the_drop_is_taken_and_no_slower_one_is_measured(chain):
    found = feasible_solutions(chain(3))
    measured = []

    def drop_of(solution):
        measured.append(solution)
        return solution.error / 100

    choice = choose(found, max_drop=0.01, drop_of=drop_of)
    assert choice.solution == next(one for one in found if one.error <= 1.0)
    assert (choice.drop, choice.tried) == (choice.solution.error / 100, len(measured))
    assert all(one.latency_ms <= choice.solution.latency_ms for one in measured)


def test_what_has_more_error_than_one_that_failed_is_not_measured(chain):
    measured = []

    def drop_of(solution):
        measured.append(solution.error)
        return 0.0 if solution.position == 0 else 1.0

    choose(feasible_solutions(chain(3)), max_drop=0.01, drop_of=drop_of)
    assert measured == sorted(set(measured), reverse=True)


def test_without_a_solution_under_the_drop_the_nearest_is_named(chain):
    found = [one for one in feasible_solutions(chain(3)) if one.position]
    least = min(found, key=lambda one: (one.error, one.latency_ms))
    with pytest.raises(UsageError) as caught:
        choose(found, max_drop=0.0, drop_of=lambda one: one.error)
    assert f"position {least.position} in {least.latency_ms:.3g} ms" in str(caught.value.hint)


def test_memory_below_any_head_leaves_the_server(chain):
    problem = replace(chain(3), memory_bytes=1)
    assert potential_splits(problem) == (0,)
    assert [one.kind for one in feasible_solutions(problem)] == ["server"]

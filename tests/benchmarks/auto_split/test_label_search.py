from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.auto_split.auto_split import feasible_solutions
from benchmarks.auto_split.baselines import device_alone, neurosurgeon
from benchmarks.auto_split.label_search import least_latency
from benchmarks.auto_split.problem import keeps_limits, server_alone


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_it_equals_trying_everything(data, problems, every_solution):
    problem = data.draw(problems)
    found = least_latency(problem)
    assert found.optimal
    assert keeps_limits(problem, found.solution)
    assert found.solution.latency_ms == pytest.approx(min(one.latency_ms for one in every_solution(problem)))


@given(data=st.data(), width=st.sampled_from([10, 20, 4096]))
@settings(max_examples=60, deadline=None)
def test_it_is_never_worse_than_either_side_alone_or_what_is_known(data, width, problems):
    problem = data.draw(problems)
    known = feasible_solutions(problem)
    found = least_latency(problem, known=known, width=width).solution
    assert keeps_limits(problem, found)
    assert found.latency_ms <= server_alone(problem).latency_ms
    assert found.latency_ms <= known[0].latency_ms
    for alone in (device_alone(problem, 8), device_alone(problem, 2), neurosurgeon(problem, 8)):
        if keeps_limits(problem, alone):
            assert found.latency_ms <= alone.latency_ms + 1e-9


def test_a_search_that_leaves_choices_out_does_not_claim_to_be_optimal(chain):
    problem = chain(12)
    assert not least_latency(problem, width=10).optimal

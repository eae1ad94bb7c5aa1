from __future__ import annotations

import pytest

from device_sdk.random_source import SplitMix64
from device_sdk.search.port import EvaluationStopped
from device_sdk.search.race import Race, SearchRun
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.paths import sample_uniformly


@pytest.fixture
def run(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(10)
    return SearchRun(make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=9)))


@pytest.fixture
def subnets(run):
    return list(dict.fromkeys(sample_uniformly(run.problem.supernet, count=6, random=SplitMix64(1))))


def test_subnets_go_through_the_shares_to_the_pool(run, subnets):
    race = Race(run, (0.1, 0.5))
    assert race.advance(subnets)
    assert run.started == dict.fromkeys(subnets, 100)
    assert race.advance(subnets[:2])
    assert race.advance(subnets[:1])
    assert list(run.pool) == subnets[:1]
    assert run.started == {subnets[1]: 500, **dict.fromkeys(subnets[2:], 100)}
    assert run.problem.evaluator.samples_run == 1000 + 500 + 100 * (len(subnets) - 2)
    assert run.result().subnets_evaluated == len(subnets)


def test_a_group_of_several_stages_advances_each(run, subnets):
    race = Race(run, (0.1,))
    race.advance(subnets[:3])
    race.advance(subnets)
    assert list(run.pool) == subnets[:3]
    assert set(run.started) == set(subnets[3:])


def test_shares_are_whole_batches(run, subnets):
    run.problem.evaluator.batch = 64
    race = Race(run, (0.01, 0.1, 0.12, 1.0))
    for expected in (64, 128):
        race.advance(subnets[:1])
        assert run.started == {subnets[0]: expected}
    race.advance(subnets[:1])
    assert list(run.pool) == subnets[:1]


def test_shares_too_small_for_the_samples_are_one_sample(run, subnets):
    race = Race(run, (1e-9, 1.0))
    race.advance(subnets[:1])
    assert run.started == {subnets[0]: 1}


def test_observations_guess_the_rest_from_what_finished(run, subnets):
    race = Race(run, (0.1,))
    race.advance(subnets[:5])
    race.advance(subnets[:3])
    observed = {one.subnet: one for one in race.observations()}
    assert len(observed) == 5
    evaluator = run.problem.evaluator
    for subnet in subnets[:3]:
        assert observed[subnet].samples == 1000
        assert observed[subnet].correct == pytest.approx(1000 * run.pool[subnet].accuracy, abs=10)
        assert observed[subnet].unseen == 0
    rest = evaluator.scores(subnets[:3], slice(100, None)).sum(axis=1).mean()
    for subnet in subnets[3:5]:
        first = evaluator.scores([subnet], slice(0, 100)).sum()
        assert observed[subnet].samples == 1000
        assert observed[subnet].correct == pytest.approx(first + rest, abs=10)
        assert observed[subnet].unseen > 0
        assert observed[subnet].variance > observed[subnets[0]].variance


def test_before_anything_finished_the_rest_is_anybodys_guess(run, subnets):
    race = Race(run, (0.1,))
    race.advance(subnets[:1])
    (observed,) = race.observations()
    right = run.problem.evaluator.scores(subnets[:1], slice(0, 100)).sum()
    assert observed.correct == pytest.approx(right + 450, abs=5)
    assert observed.unseen == pytest.approx(900 / 4)


def test_a_race_begins_with_the_telling_samples(run):
    asked = []
    run.problem.evaluator.order_by_margin = lambda *, should_stop: asked.append(should_stop())
    assert Race(run, (0.1,)).begin()
    assert asked == [False]


def test_a_race_may_be_stopped_at_the_start(run):
    def stopped(*, should_stop):
        raise EvaluationStopped

    run.problem.evaluator.order_by_margin = stopped
    assert not Race(run, (0.1,)).begin()


def test_a_stopped_evaluation_leaves_what_was_there(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(10)
    answers = iter([False, True, True])
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=9), cancelled=lambda: next(answers))
    run = SearchRun(problem)
    race = Race(run, (0.1,))
    assert race.advance([supernet.original])
    assert not race.advance([supernet.original])
    assert run.started == {supernet.original: 100}
    assert run.pool == {}

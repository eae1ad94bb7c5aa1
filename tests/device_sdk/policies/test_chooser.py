from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from device_sdk.data.datasets import split_positions
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import BudgetError, InfeasibleBudgetError, InputError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies import chooser
from device_sdk.policies.chooser import Here, choose
from device_sdk.policies.confirmation import EQUAL_LATENCY, Measure
from device_sdk.policies.gathering import AdaptationSettings, search_positions
from device_sdk.profiling.profile import Profile, profile
from device_sdk.profiling.timing import Latency, Ratio
from device_sdk.progress import SilentProgress
from device_sdk.search import STRATEGIES
from device_sdk.search.ladder import ladder
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import AnswerLocally, Edge, Plan, Subnet

pytestmark = pytest.mark.alone

ORIGINAL_MS = 320.0  # of the slow profile


def path(*blocks: str) -> Subnet:
    return Subnet(tuple(Edge(*block.split("@")) for block in blocks))


CHEAPEST = path("o0", "m1-4", "o4")  # 50 ms, 4 MB
BEST_SHORT = path("o0", "o1", "m2-4", "o4")  # 150 ms, 8 MB: the best below 200 ms


def as_predicted(own_profile: Profile, factor: float = 1.0) -> Measure:
    """A device on which everything takes as long as the profile says, whatever the pace.

    ``factor``: of all but the full model, which the profile does not know.
    """
    costs, original = own_profile.cost_model(), own_profile.fitted[0].subnet

    def measure(subnets, as_served):
        times_ms = [costs.latency_ms(one) * (1.0 if one == original else factor) for one in subnets]
        return [
            Latency(median_ms=ms, p95_ms=ms, p25_ms=ms, p75_ms=ms, runs=9, ratio=Ratio(ms / times_ms[0], 0.001))
            for ms in times_ms
        ]

    return measure


@pytest.fixture
def run(bundle, runtime, slow_profile, tiny_bundle):
    """Adapts the tiny bundle on its own samples, by default on a device that is as slow as ``slow_profile``."""
    inputs = prepare(tiny_bundle.images, bundle.manifest.preprocessing, input_shape=(3, 20, 20))

    def run(
        goal,
        *,
        consider=("subnets",),
        inputs=inputs,
        labels=tiny_bundle.labels,
        own_profile=None,
        plan=None,
        factor=1.0,
        **settings,
    ):
        here = Here(
            Workspace(bundle, runtime),
            own_profile or slow_profile,
            plan or Plan(bundle.supernet.original),
            measure=as_predicted(slow_profile, factor) if own_profile is None else None,
        )
        settings = AdaptationSettings(**settings)
        return choose(inputs, labels, goal, consider, here, settings=settings, progress=SilentProgress())

    run.inputs, run.labels = inputs, tiny_bundle.labels
    return run


@pytest.mark.parametrize(
    ("latency_ms", "subnet"),
    [
        (50.0, CHEAPEST),
        (270.0, path("o0", "o1@int8", "o2", "o3", "o4")),
        (ORIGINAL_MS, path("o0", "o1", "o2", "o3", "o4")),
        (1e9, path("o0", "o1", "o2", "o3", "o4")),
        (math.inf, path("o0", "o1", "o2", "o3", "o4")),
    ],
)
def test_the_most_accurate_subnet_within_the_budget_is_chosen(run, bundle, latency_ms, subnet):
    found = run(Goal(latency_ms=latency_ms))
    assert found.subnet == subnet
    assert found.expected.latency_ms <= latency_ms
    assert found.measured.latency_ms <= latency_ms
    assert found.plan.exits == ()


def test_nothing_in_the_pool_that_fits_is_better(run):
    found = run(Goal(latency_ms=200.0))
    fitting = [one for one in found.pool if one.cost.latency_ms <= 200.0]
    assert found.subnet == BEST_SHORT
    assert found.expected.accuracy == max(one.accuracy for one in fitting)
    assert found.considered == len(found.pool) >= len(fitting) >= 3


def test_a_memory_limit_alone_is_a_budget(run):
    found = run(Goal(memory_mb=4.5))
    assert found.subnet == CHEAPEST
    assert found.expected.peak_bytes == 4_000_000
    assert found.measured.latency_ms > 0


def test_both_limits_hold(run):
    found = run(Goal(latency_ms=ORIGINAL_MS, memory_mb=8.0))
    assert found.subnet == BEST_SHORT
    assert found.expected.peak_bytes <= 8_000_000


@pytest.fixture
def timed(monkeypatch):
    """Sets what plans with exits measure on average, with them and without."""

    def set_ms(with_ms, without_ms):
        monkeypatch.setattr(chooser, "measured_in_turns", lambda workspace, plan, inputs: [with_ms, without_ms])

    set_ms(55.0, 320.0)
    return set_ms


WITH_EXITS = ("subnets", "exits")


def test_with_exits_a_slower_subnet_may_keep_the_budget_on_average(run, bundle, timed):
    plain = run(Goal(latency_ms=60.0))
    found = run(Goal(latency_ms=60.0), consider=WITH_EXITS)
    assert plain.subnet == CHEAPEST
    assert found.plan.exits
    assert found.expected.latency_ms <= 60.0
    assert (found.measured.latency_ms, found.measured.without_exits_ms) == (55.0, 320.0)
    assert found.expected.accuracy >= plain.expected.accuracy
    assert found.judged == 18
    bundle.supernet.check_plan(found.plan)


def test_with_exits_every_sample_gets_an_answer(run, timed):
    labels = run.labels.copy()
    labels[::4] = (labels[::4] + 1) % (labels.max() + 1)  # no plan is right on these
    found = run(Goal(latency_ms=60.0), consider=WITH_EXITS, labels=labels)
    assert found.plan.hard == AnswerLocally()
    assert found.plan.exits, "abstaining from the others would be more accurate, and hide the exits"


def test_exits_for_deadlines_are_at_all_other_cut_points(run, bundle, timed):
    found = run(Goal(latency_ms=60.0), consider=WITH_EXITS)
    positions = [bundle.supernet.exit(choice.exit).position for choice in found.plan.exits]
    assert positions == sorted({one.position for one in bundle.supernet.exits_along(found.subnet)})
    assert any(choice.threshold <= 1 for choice in found.plan.exits)


@pytest.mark.parametrize("measured_ms", [(61.5, 320.0), (50.0, 49.0)])
def test_exits_that_measure_above_the_limit_or_save_no_time_are_left_out(run, timed, measured_ms):
    timed(*measured_ms)
    found = run(Goal(latency_ms=60.0), consider=WITH_EXITS)
    assert found.subnet == CHEAPEST
    assert not any(choice.decides for choice in found.plan.exits)
    assert any("exits are left out" in note for note in found.notes)


def test_a_plan_with_exits_is_not_lost_to_a_subnet_that_measures_too_slow(run, timed):
    found = run(Goal(latency_ms=160.0), consider=WITH_EXITS, factor=2.0)
    plain = run(Goal(latency_ms=160.0), factor=2.0)
    assert plain.subnet == CHEAPEST  # the better ones are predicted to fit, and do not
    assert any(choice.decides for choice in found.plan.exits)
    assert found.expected.accuracy > plain.expected.accuracy


def test_a_subnet_that_measures_too_slow_gives_way_to_one_that_fits(run):
    goal = Goal(optimise="latency_ms", accuracy=0.3, latency_ms=160.0)
    found = run(goal, factor=1.5)
    assert found.measured.latency_ms <= 160.0 * EQUAL_LATENCY


def test_the_fastest_plan_that_is_accurate_enough_needs_no_search_before(run, slow_profile, bundle):
    costs = slow_profile.cost_model()
    found = run(Goal(optimise="latency_ms", accuracy=0.3))
    rungs = [costs.latency_ms(one) for column in ladder(bundle.supernet) for one in column]
    assert found.expected.latency_ms <= min(rungs)
    assert found.expected.accuracy >= 0.3
    assert found.measured.latency_ms == pytest.approx(found.expected.latency_ms, rel=0.1)


def test_without_subnets_the_one_in_use_stays(run, timed):
    found = run(Goal(optimise="latency_ms", max_drop=0.0), consider=("exits",), plan=Plan(BEST_SHORT))
    assert found.subnet == BEST_SHORT


def test_abstention_raises_the_accuracy_within_the_coverage(run):
    labels = run.labels.copy()
    labels[::4] = (labels[::4] + 1) % (labels.max() + 1)
    found = run(Goal(coverage=0.7), consider=("abstain",), labels=labels)
    answering = run(Goal(), consider=("abstain",), labels=labels)
    assert found.expected.accuracy >= answering.expected.accuracy
    assert found.expected.coverage >= 0.7
    assert answering.expected.coverage == 1.0


def test_accuracies_are_those_of_disjoint_samples(run):
    kept, held = split_positions(run.labels, holdout_share=0.3, seed=0)
    found = run(Goal(latency_ms=ORIGINAL_MS))
    assert ((found.samples - found.judged), found.judged) == (len(kept), len(held)) == (42, 18)
    assert (found.expected.accuracy, found.held_out.accuracy, found.full_accuracy) == (1.0, 1.0, 1.0)

    spoiled = run.inputs.copy()
    spoiled[held] = np.roll(spoiled[held], 1, axis=1)  # every colour becomes the next one
    found = run(Goal(latency_ms=ORIGINAL_MS), inputs=spoiled)
    assert (found.expected.accuracy, found.held_out.accuracy, found.full_accuracy) == (1.0, 0.0, 0.0)


def test_without_labels_the_full_model_stands_in(run):
    found = run(Goal(latency_ms=ORIGINAL_MS), labels=None)
    assert found.subnet == path("o0", "o1", "o2", "o3", "o4")
    assert found.expected.accuracy == found.full_accuracy == 1.0
    labelled = run(Goal(latency_ms=200.0), labels=(run.labels + 1) % 3)
    assert run(Goal(latency_ms=200.0), labels=None).expected.accuracy != labelled.expected.accuracy


def test_one_sample_is_searched_on_and_nothing_is_held_back(run):
    found = run(Goal(latency_ms=200.0), inputs=run.inputs[:1], labels=run.labels[:1])
    assert ((found.samples - found.judged), found.judged) == (1, 0)
    assert found.held_out is None
    assert found.full_accuracy is None


def test_samples_of_one_class_will_do(run):
    only = run.labels == 1
    found = run(Goal(latency_ms=200.0), inputs=run.inputs[only], labels=run.labels[only])
    assert (found.samples - found.judged) + found.judged == only.sum()
    assert found.expected.latency_ms <= 200.0


def test_a_budget_below_the_cheapest_subnet_names_the_nearest(run):
    with pytest.raises(InfeasibleBudgetError, match="no subnet ran in 45 ms") as caught:
        run(Goal(latency_ms=45.0))
    assert caught.value.nearest == CHEAPEST.block_ids
    assert caught.value.nearest_latency_ms == pytest.approx(50.0)
    assert "52.5" in caught.value.hint


def test_a_budget_may_be_a_share_of_the_full_models_latency(run):
    found = run(Goal(latency_ratio=200.0 / ORIGINAL_MS))
    assert found.goal.latency_ms == pytest.approx(200.0)
    assert found.subnet == BEST_SHORT
    assert found.measured.ratio == pytest.approx(150.0 / ORIGINAL_MS)


def test_the_result_says_how_sure_it_is(run):
    found = run(Goal(latency_ms=200.0))
    low_ms, high_ms = found.measured.interval_ms
    assert found.measured.latency_ms == pytest.approx(150.0)
    assert 140.0 < low_ms < found.measured.latency_ms < high_ms < 160.0
    assert found.measured.within_budget_probability > 0.99
    assert 0 <= found.accuracy_interval[0] < found.expected.accuracy <= found.accuracy_interval[1] <= 1
    assert found.measured.slowdown == 1.0
    assert found.measured.prepare_ms >= 0


def test_a_memory_budget_below_the_smallest_subnet_names_the_nearest(run):
    with pytest.raises(InfeasibleBudgetError, match=r"no subnet runs in 3\.9 MB") as caught:
        run(Goal(memory_mb=3.9))
    assert caught.value.nearest_peak_bytes == 4_000_000


@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_a_budget_that_is_none_never_gets_here(run, limit):
    with pytest.raises(BudgetError, match="above zero"):
        run(Goal(latency_ms=limit))


def test_equal_seeds_find_equal_subnets_in_equal_order(run):
    first, second = (run(Goal(latency_ms=250.0), seed=5) for _ in range(2))
    assert first.pool == second.pool
    assert first.plan == second.plan


def test_labels_that_do_not_match_are_refused(run):
    with pytest.raises(InputError, match=r"60 samples and labels of shape \(59,\)"):
        run(Goal(latency_ms=200.0), labels=run.labels[:-1])


@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_that_name_no_class_are_refused(run, wrong):
    labels = run.labels.copy()
    labels[5] = wrong
    with pytest.raises(InputError, match="labels must lie between 0 and 2"):
        run(Goal(latency_ms=200.0), labels=labels)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_are_no_numbers_are_refused(run, value):
    inputs = run.inputs.copy()
    inputs[7, 0, 3, 3] = value
    with pytest.raises(InputError, match="1 of 60 samples have values that are no numbers, number 7 first"):
        run(Goal(latency_ms=200.0), inputs=inputs)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_finds_the_best_of_a_small_space(run, strategy):
    found = run(Goal(latency_ms=200.0), strategy=strategy)
    assert found.subnet == BEST_SHORT
    assert all(one.expected is not None for one in found.pool)


def test_the_samples_to_search_on_are_in_random_order_and_none_is_lost(run):
    kept, held = search_positions(np.sort(run.labels), AdaptationSettings(seed=3))
    first = np.sort(run.labels)[kept[:20]]
    assert len(np.unique(first)) == 3
    assert sorted([*kept, *held]) == list(range(60))
    again, _ = search_positions(np.sort(run.labels), AdaptationSettings(seed=3))
    assert kept.tolist() == again.tolist()


@pytest.mark.parametrize("labels", [None, np.zeros(0, dtype=np.int64)])
def test_no_samples_are_refused(run, labels):
    with pytest.raises(InputError, match="no samples"):
        run(Goal(latency_ms=200.0), inputs=run.inputs[:0], labels=labels)


def test_settings_that_make_no_sense_are_refused(run):
    with pytest.raises(UsageError, match="no search strategy"):
        run(Goal(latency_ms=200.0), strategy="oracle")
    with pytest.raises(UsageError, match="held-out share"):
        run(Goal(latency_ms=200.0), holdout_share=1.0)
    with pytest.raises(UsageError, match="batch is 0"):
        run(Goal(latency_ms=200.0), batch=0)


def test_a_search_that_is_cancelled_at_once_has_nothing_to_offer(run):
    with pytest.raises(BudgetError, match="the search was stopped before"):
        run(Goal(latency_ms=200.0), cancelled=lambda: True)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_search_without_time_still_offers_something_that_fits(run, strategy):
    found = run(Goal(latency_ms=200.0), time_limit_s=0.0, strategy=strategy)
    assert found.expected.latency_ms <= 200.0
    assert found.stopped == "time limit"
    assert len(found.pool) <= 2  # the fastest, and what packaging favours


def test_a_subnet_that_measures_above_the_budget_is_never_chosen(run, slow_profile):
    """A profile that promises a thousandth of what blocks really take."""
    hopeful = msgspec.structs.replace(slow_profile, scale=1e-9, original_ms=ORIGINAL_MS * 1e-9)
    with pytest.raises(InfeasibleBudgetError, match="the fastest candidate took") as caught:
        run(Goal(latency_ms=ORIGINAL_MS * 1e-9), own_profile=hopeful)
    assert caught.value.nearest_latency_ms > ORIGINAL_MS * 1e-9
    assert caught.value.hint


def test_a_real_profile_leads_to_a_subnet_that_measures_within_the_budget(run, bundle, runtime):
    measured = profile(Workspace(bundle, runtime), progress=SilentProgress())
    found = run(Goal(latency_ratio=0.7, calls_per_second=math.inf), own_profile=measured)
    assert found.goal.latency_ms == pytest.approx(0.7 * found.measured.full_ms)
    assert found.measured.latency_ms <= found.goal.latency_ms * EQUAL_LATENCY
    assert found.subnet != bundle.supernet.original
    assert found.measured.ratio == found.measured.latency_ms / found.measured.full_ms < 1


WITH_CASCADES = ("subnets", "cascade")


def test_a_cascade_may_keep_a_budget_on_average_that_its_second_path_exceeds(run, bundle, timed):
    timed(200.0, 50.0)
    plain = run(Goal(latency_ms=200.0))
    found = run(Goal(latency_ms=200.0), consider=WITH_CASCADES)
    assert found.plan.kind == "cascade"
    assert found.expected.latency_ms <= 200.0
    assert found.held_out.accuracy >= plain.held_out.accuracy
    assert (found.measured.latency_ms, found.measured.without_exits_ms) == (200.0, 50.0)
    assert 0 < found.expected.share_second < 1
    bundle.supernet.check_plan(found.plan)


def test_cascades_that_measure_above_the_limit_again_and_again_are_left_out(run, timed):
    timed(500.0, 50.0)
    found = run(Goal(latency_ms=200.0), consider=WITH_CASCADES)
    assert found.plan.second is None
    assert any("cascades are left out" in note for note in found.notes)


def test_a_cascade_that_measures_too_slow_gives_way_to_a_quicker_one(run, monkeypatch):
    times_ms = iter([[300.0, 50.0], [190.0, 50.0]])
    monkeypatch.setattr(chooser, "measured_in_turns", lambda *_: next(times_ms))
    found = run(Goal(latency_ms=200.0), consider=WITH_CASCADES)
    assert found.plan.kind == "cascade"
    assert found.expected.latency_ms <= 200.0 * 200.0 / 300.0
    assert found.measured.latency_ms == 190.0

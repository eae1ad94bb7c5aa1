from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hard_samples.router_fitting import RouterSettings, fit_router, fit_router_if_better
from device_sdk.errors import InputError
from device_sdk.policies.deciding.decider_fitting import Viewed, cross_fitted_eases, fit_logistic, mean_gain
from device_sdk.supernet.deciders.port import Seen, ease
from device_sdk.supernet.plan import Abstain, Edge, Plan, Subnet, decode_plan, encode_plan


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32) * 3


def test_what_the_probabilities_tell_is_learned_for_new_samples(logits):
    third = np.sort(logits, axis=1)[:, -3]
    easy = np.sort(logits, axis=1)[:, -2] - third > 1.2  # nothing that the entropy shows
    found = fit_router(logits[:1500], easy[:1500])
    new = ease(found.decider, logits[1500:])
    assert ((new > np.median(new)) == easy[1500:]).mean() > 0.8
    by_entropy = -Seen(logits[1500:]).entropy
    assert ((by_entropy > np.median(by_entropy)) == easy[1500:]).mean() < 0.7


def test_the_same_samples_and_seed_give_the_same_router(logits):
    easy = np.sort(logits, axis=1)[:, -1] > 5
    settings = RouterSettings(most_epochs=5)
    found, again = (fit_router(logits, easy, settings) for _ in range(2))
    assert found.decider == again.decider
    assert np.array_equal(found.eases, again.eases)


def test_noise_is_not_learned_for_long(logits):
    easy = np.random.default_rng(1).uniform(size=2000) < 0.9
    found = ease(fit_router(logits[:1000], easy[:1000]).decider, logits[1000:])
    assert found.std() < 0.15


@pytest.mark.parametrize("easy", [True, False])
def test_answers_of_one_kind_teach_nothing(logits, easy):
    assert fit_router(logits, np.full(2000, easy)) is None


def test_samples_that_cannot_be_learned_from_are_refused(logits):
    with pytest.raises(InputError, match="2000 samples and 2 outcomes"):
        fit_router(logits, np.array([True, False]))
    spoiled = logits.copy()
    spoiled[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        fit_router(spoiled, np.arange(2000) % 2 == 0)


def test_a_handful_of_samples_is_enough_to_try():
    logits = np.array([[2.0, 0.0], [0.1, 0.0], [1.0, 0.5]], np.float32)
    assert fit_router(logits, np.array([True, False, True])) is not None


def test_a_router_is_preferred_only_where_it_ranks_new_samples_better(logits):
    ordered = np.sort(logits, axis=1)
    hidden = ordered[:, -2] - ordered[:, -3] > 1.2  # nothing that the entropy shows
    by_entropy = -Seen(logits).entropy
    found = fit_router_if_better(logits, hidden, by_entropy)
    assert mean_gain(found.eases, ~hidden) > mean_gain(by_entropy, ~hidden)
    assert fit_router_if_better(logits, by_entropy > np.median(by_entropy), by_entropy) is None
    assert fit_router_if_better(logits, np.full(2000, True), by_entropy) is None


def test_a_rival_is_judged_on_samples_that_it_left_out():
    """A regression with a number per class that has seen the samples ranks them better than it does new ones."""
    random = np.random.default_rng(3)
    logits = random.normal(size=(400, 40)).astype(np.float32)
    unsure = Seen(logits).entropy
    easy = random.uniform(size=400) < 1 / (1 + np.exp((unsure - unsure.mean()) / unsure.std()))
    rival = fit_logistic(logits, easy)
    seen, left_out = ease(rival, logits), cross_fitted_eases(logits, easy)
    assert mean_gain(seen, ~easy) > mean_gain(left_out, ~easy) + 3
    router = fit_router(logits, easy)
    assert mean_gain(left_out, ~easy) < mean_gain(router.eases, ~easy) < mean_gain(seen, ~easy)
    assert fit_router_if_better(logits, easy, seen) is None
    assert fit_router_if_better(logits, easy, left_out) is not None


def test_the_router_is_the_entropy_where_nothing_else_helps():
    random = np.random.default_rng(4)
    logits = (random.normal(size=(600, 10)) * 3).astype(np.float32)
    easy = random.uniform(size=600) < 1 / (1 + np.exp(3 * Seen(logits).entropy - 4))
    found = fit_router(logits, easy, RouterSettings(penalties=(np.inf,), most_epochs=0)).decider
    assert np.array_equal(np.argsort(ease(found, logits)), np.argsort(-Seen(logits).entropy))


def test_networks_correct_the_regression_where_that_lowers_the_loss(logits):
    third = np.sort(logits, axis=1)[:, -3]
    between = np.abs(np.sort(logits, axis=1)[:, -1] - third - 3.0) < 1.0  # no line through the features parts it
    found = fit_router(logits[:1500], between[:1500])
    assert found.decider.hidden == (1 + 5 * 8, 1 + 5 * 8)
    without = fit_router(logits[:1500], between[:1500], RouterSettings(most_epochs=0))
    assert without.decider.hidden == (1, 1)
    gains = ~between[1500:]
    assert mean_gain(ease(found.decider, logits[1500:]), gains) > mean_gain(ease(without.decider, logits[1500:]), gains)


def test_views_of_a_sample_are_left_out_with_it():
    """Were a view of a left-out sample learned from, its outcome, which is noise, would be known."""
    random = np.random.default_rng(5)
    logits = random.normal(size=(200, 10)).astype(np.float32) * 3
    easy = random.uniform(size=200) < 0.5
    views = Viewed(np.stack([logits] * 10), np.stack([easy] * 10))
    found = fit_router(logits, easy, views=views)
    assert abs(np.corrcoef(found.eases, easy)[0, 1]) < 0.2


def test_views_that_are_hard_are_enough_where_all_samples_are_easy():
    logits = np.random.default_rng(6).normal(size=(100, 10)).astype(np.float32) * 3
    shown, easy = np.stack([logits, logits / 2]), np.stack([np.full(100, True), -Seen(logits / 2).entropy > -0.5])
    assert fit_router(logits, np.full(100, True)) is None
    found = fit_router(logits, np.full(100, True), views=Viewed(shown, easy))
    assert np.isfinite(found.eases).all()
    assert fit_router(logits, np.full(100, True), views=Viewed(shown, np.full((2, 100), True))) is None


def test_views_of_other_samples_are_refused(logits):
    with pytest.raises(InputError, match="views of shape"):
        fit_router(logits, logits[:, 0] > 0, views=Viewed(logits[None, :10], logits[None, :10, 0] > 0))


def test_weights_survive_the_way_through_json(logits):
    found = fit_router(logits, ordered_easy(logits), RouterSettings(most_epochs=2)).decider
    plan = Plan(Subnet((Edge("o0"),)), hard=Abstain(found))
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert np.array_equal(ease(again.hard.decider, logits), ease(found, logits))
    assert len(encode_plan(plan)) < 22_000


def ordered_easy(logits):
    return np.sort(logits, axis=1)[:, -1] > 5

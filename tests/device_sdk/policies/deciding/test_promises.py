from __future__ import annotations

import math

import numpy as np
import pytest

from device_sdk.errors import InputError, UsageError
from device_sdk.policies.deciding.promises import (
    USUAL_CERTAINTY,
    Promise,
    binomial_tail,
    caution_of,
    is_certain_gain,
    most_drop,
    most_shares,
    samples_for,
    usual_certainty,
)
from device_sdk.policies.deciding.thresholds import fewest_asked


@pytest.mark.parametrize(
    ("successes", "trials", "probability"), [(0, 10, 0.3), (3, 10, 0.3), (10, 10, 0.3), (40, 1000, 0.05)]
)
def test_the_tail_of_the_binomial_distribution_is_the_sum_of_its_terms(successes, trials, probability):
    terms = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(successes + 1)]
    assert binomial_tail(successes, trials, probability) == pytest.approx(sum(terms))


@pytest.mark.parametrize(("samples", "certainty"), [(1, 0.9), (7, 0.5), (126, 0.9), (2000, 0.977)])
def test_a_bounded_share_is_what_the_exact_test_rules_out(samples, certainty):
    bounds = most_shares(samples, certainty)
    assert bounds[-1] == 1.0
    assert (np.diff(bounds) > 0).all()
    for count in range(0, samples, max(1, samples // 5)):
        assert binomial_tail(count, samples, bounds[count]) == pytest.approx(1 - certainty, abs=1e-6)


def test_a_threshold_set_by_the_bound_sends_too_many_as_seldom_as_stated():
    random, share = np.random.default_rng(0), 0.2
    count = int(np.searchsorted(most_shares(150, 0.9), share, side="right")) - 1
    sent = [np.sort(random.uniform(size=150))[count] for _ in range(2000)]  # of uniform eases: below the next larger
    assert np.mean(np.array(sent) <= share) == pytest.approx(0.9, abs=0.03)


def test_a_gain_is_certain_from_a_standard_error_on():
    assert is_certain_gain(np.array([1.0] * 6 + [0.0] * 94))
    assert not is_certain_gain(np.array([1.0] * 6 + [-1.0] * 5 + [0.0] * 89))
    assert not is_certain_gain(np.eye(100)[0])
    assert not is_certain_gain(np.zeros(5))


def drawn(random, count):
    """Ease, and right answers here (the likelier, the easier) and at a server that is right for 96 %."""
    ease = random.uniform(size=count)
    return ease, random.uniform(size=count) < 0.6 + 0.4 * ease, random.uniform(size=count) < 0.96


def system(limit, ease, here, server):
    return np.where(ease < limit, server, here).mean()


def test_promises_are_kept_as_often_as_stated():
    random = np.random.default_rng(0)
    ease, here, server = drawn(random, 400_000)
    kept = []
    for _ in range(200):
        limit = fewest_asked(*drawn(random, 500), accuracy=0.88, certainty=0.9)
        kept.append(system(limit, ease, here, server) >= 0.88)
    assert np.mean(kept) >= 0.87  # two standard errors of 200 draws below 0.9


def test_more_samples_send_fewer_for_the_same_promise():
    random = np.random.default_rng(1)
    limits = [fewest_asked(*drawn(random, count), accuracy=0.88, certainty=0.9) for count in (300, 30_000)]
    assert limits[1] < limits[0]


def test_a_device_that_is_sure_enough_sends_nothing():
    ease, right = np.linspace(0, 1, 500), np.ones(500, dtype=bool)
    assert fewest_asked(ease, right, right, accuracy=0.9, certainty=0.95) == 0.0


def test_a_promise_above_the_server_cannot_be_made():
    ease, here, server = drawn(np.random.default_rng(2), 500)
    assert fewest_asked(ease, here, server, accuracy=0.99, certainty=0.9) is None


def test_samples_of_one_ease_are_sent_together_or_not_at_all():
    ease = np.zeros(400)
    here, server = np.arange(400) % 2 == 0, np.ones(400, dtype=bool)
    assert fewest_asked(ease, here, server, accuracy=0.9, certainty=0.9) == math.inf


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="0 eases"):
        fewest_asked(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), accuracy=0.9, certainty=0.9)
    with pytest.raises(UsageError, match="between 0 and 1"):
        fewest_asked(np.zeros(1), np.ones(1, bool), np.ones(1, bool), accuracy=1.0, certainty=0.9)


def test_the_tail_agrees_with_scipys():
    stats = pytest.importorskip("scipy.stats")
    for successes, trials, probability in [(0, 1, 0.5), (12, 113, 0.1), (400, 3989, 0.1), (3989, 3989, 0.1)]:
        expected = stats.binom.cdf(successes, trials, probability)
        assert binomial_tail(successes, trials, probability) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("samples", "wrong"), [(113, 5), (1000, 100), (20, 0)])
def test_the_least_accuracy_is_the_bound_of_clopper_and_pearson(samples, wrong):
    stats = pytest.importorskip("scipy.stats")
    promise = Promise(0.9, samples, wrong)
    assert promise.least_accuracy == pytest.approx(1 - stats.beta.ppf(0.9, wrong + 1, samples - wrong), abs=1e-7)
    assert promise.holds(promise.least_accuracy - 1e-6)
    assert not promise.holds(promise.least_accuracy + 1e-6)


def test_no_samples_promise_nothing():
    assert Promise(0.9, 0, 0).least_accuracy == pytest.approx(0, abs=1e-6)
    assert not Promise(0.9, 0, 0).holds(0.5)


def test_a_certainty_is_usual_where_the_samples_suffice_for_a_way_that_loses_none():
    enough = samples_for(0.01)
    assert usual_certainty(enough, 0.01) == USUAL_CERTAINTY
    assert caution_of(np.zeros(enough), USUAL_CERTAINTY, turn=1) <= 0.01
    assert usual_certainty(enough - 1, 0.01) is None
    few = math.floor(0.98 * enough)
    assert caution_of(np.zeros(few), USUAL_CERTAINTY, turn=1) > 0.01
    assert usual_certainty(10**6, 0.0) is None


def test_what_is_won_weighs_against_what_is_lost():
    alone, with_gains = most_drop(5, 0, 600, 0.9), most_drop(5, 5, 600, 0.9)
    assert alone == pytest.approx(1 - Promise(0.9, 600, 5).least_accuracy, rel=0.02)
    assert 0 < with_gains < 0.55 * alone
    assert most_drop(5, 5, 600, 0.99) > with_gains
    assert most_drop(0, 9, 600, 0.9) < most_drop(0, 0, 600, 0.9)


@pytest.mark.parametrize(("lost", "won"), [(0.01, 0.0), (0.02, 0.01), (0.2, 0.19)])
@pytest.mark.parametrize("samples", [40, 200])
def test_a_bound_of_the_drop_is_exceeded_no_oftener_than_stated(samples, lost, won):
    counts = np.random.default_rng(samples).multinomial(samples, [lost, won, 1 - lost - won], size=400)
    found, times = np.unique(counts[:, :2], axis=0, return_counts=True)
    below = sum(
        n for (bad, good), n in zip(found, times, strict=True) if most_drop(bad, good, samples, 0.9) < lost - won
    )
    assert below / 400 <= 0.1 + 3 * (0.09 / 400) ** 0.5


@pytest.mark.parametrize(("lost", "won", "samples"), [(1, 0, 1), (0, 0, 1), (10, 0, 10), (0, 10, 10), (0, 0, 10**5)])
def test_bounds_of_drops_at_the_edges(lost, won, samples):
    assert (lost - won) / samples <= most_drop(lost, won, samples, 0.9) <= 1


def test_a_promise_of_a_drop_counts_what_is_won():
    paired = Promise(0.9, 400, 4, won=4)
    assert paired.holds(0.985)
    assert not Promise(0.9, 400, 4, won=0).holds(0.985)
    assert paired.least_accuracy == pytest.approx(1 - most_drop(4, 4, 400, 0.9))
    assert paired.holds(paired.least_accuracy - 1e-3)
    assert not paired.holds(paired.least_accuracy + 1e-3)


def test_no_drop_at_all_is_shown_by_what_is_won_alone():
    assert not Promise(0.9, 100, 5).holds(1.0)
    assert not Promise(0.9, 100, 0, won=0).holds(1.0)
    assert not Promise(0.9, 400, 5, won=5).holds(1.0)
    assert Promise(0.9, 400, 0, won=40).holds(1.0)
    assert not Promise(0.9, 0, 0, won=0).holds(0.5)

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InputError
from device_sdk.policies.deciding.decider_fitting import (
    ALL_FEATURES,
    TOP_TWO,
    Viewed,
    asking_pays,
    cross_fitted_eases,
    fit_best_logistic,
    fit_logistic,
    mean_gain,
)
from device_sdk.supernet.deciders.port import confidence, ease, hard


@pytest.fixture
def logits():
    return np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32) * 3


def test_the_estimate_recovers_the_odds_that_answers_were_drawn_with(logits):
    chances = 1 / (1 + np.exp(-(8 * confidence(logits) - 5)))
    right = np.random.default_rng(1).uniform(size=400) < chances
    found = fit_logistic(logits, right, features=TOP_TWO, by_class=False)
    assert np.abs(ease(found, logits) - chances).mean() < 0.06


@pytest.mark.parametrize("features", [TOP_TWO, ALL_FEATURES])
def test_samples_below_the_threshold_of_the_estimate_are_hard(logits, features):
    right = confidence(logits) > 0.7
    found = fit_logistic(logits, right, features=features)
    assert found.features == features
    assert np.array_equal(hard(found, logits), ease(found, logits) < 0.5)
    assert (hard(found, logits) == ~right).mean() > 0.9


def test_classes_that_are_confused_more_often_count_as_harder():
    random = np.random.default_rng(3)
    logits = random.normal(size=(2000, 4)).astype(np.float32)
    answers = logits.argmax(axis=1)
    right = random.uniform(size=2000) < np.where(answers == 2, 0.5, 0.95)
    found, blind = fit_logistic(logits, right), fit_logistic(logits, right, by_class=False)
    assert (len(found.by_answer), len(found.by_runner_up)) == (4, 4)
    assert np.argmin(found.by_answer) == 2
    assert np.abs(ease(found, logits)[answers == 2].mean() - 0.5) < 0.05
    assert blind.by_answer == ()


def test_hundreds_of_classes_with_a_sample_or_two_do_no_harm():
    """What chance says of classes is shrunk: left-out samples are ranked about as well as without them."""
    random = np.random.default_rng(4)
    logits = random.normal(size=(180, 300)).astype(np.float32) * 3
    easy = random.uniform(size=180) < 1 / (1 + np.exp(-(10 * confidence(logits) - 3)))
    with_classes, without = (cross_fitted_eases(logits, easy, by_class=by_class) for by_class in (True, False))
    assert mean_gain(with_classes, ~easy) > mean_gain(without, ~easy) - 2
    found = fit_logistic(logits, easy)
    seen = np.unique(logits.argmax(axis=1))
    assert len(found.by_answer) == 300
    assert not np.delete(found.by_answer, seen).any()
    assert np.abs(found.by_answer).max() < 2.0


def specialist(count: int, known: int):
    """A device's logits of ten classes, its right answers, and those of a server that knows the first few classes."""
    random = np.random.default_rng(8)
    labels = random.integers(0, 10, count)
    logits = random.normal(size=(count, 10)).astype(np.float32)
    logits[np.arange(count), labels] += 2.0
    here = logits.argmax(axis=1) == labels
    return logits, here, labels < known


def test_a_specialist_is_asked_for_the_classes_that_it_knows():
    logits, here, there = specialist(1500, known=5)
    easy, losses = here | ~there, here & ~there
    found, blind = fit_best_logistic(logits, easy, losses=losses), fit_best_logistic(logits, easy)
    gains = (~easy).astype(int) - losses
    assert mean_gain(found.eases, gains) > mean_gain(blind.eases, gains) + 10
    asked = logits.argmax(axis=1)[np.argsort(found.eases)[:300]]
    assert (asked < 5).mean() > 0.95
    assert asking_pays(found.eases, gains)


def test_the_estimate_given_losses_is_half_of_one_minus_the_gain():
    logits, here, there = specialist(4000, known=5)
    found = fit_logistic(logits, here | ~there, losses=here & ~there)
    of_known = logits.argmax(axis=1) < 5
    net = there.astype(float) - here
    for part in (of_known, ~of_known):
        assert ease(found, logits)[part].mean() == pytest.approx((1 - net[part].mean()) / 2, abs=0.02)


def test_a_server_that_is_worse_than_the_device_on_every_class_does_not_pay():
    logits, here, _ = specialist(1500, known=0)
    there = here & (np.random.default_rng(9).uniform(size=1500) < 0.9)
    there |= ~here & (np.random.default_rng(10).uniform(size=1500) < 0.02)
    easy, losses = here | ~there, here & ~there
    found = fit_best_logistic(logits, easy, losses=losses)
    assert not asking_pays(found.eases, (~easy).astype(int) - losses)


def test_the_mean_estimate_is_the_share_of_right_answers(logits):
    right = np.random.default_rng(2).uniform(size=400) < 0.8
    found = fit_logistic(logits, right)
    assert ease(found, logits).mean() == pytest.approx(right.mean(), abs=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_answers_of_one_kind_teach_nothing(logits, right):
    assert fit_logistic(logits, np.full(400, right)) is None


def test_a_feature_that_never_changes_does_no_harm():
    logits = np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (6, 1))
    found = fit_logistic(logits, np.array([True, False] * 3))
    assert np.allclose(ease(found, logits), 0.5)


def test_samples_that_cannot_be_learned_from_are_refused(logits):
    with pytest.raises(InputError, match="400 samples and 3 outcomes"):
        fit_logistic(logits, np.array([True, False, True]))
    logits[0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        fit_logistic(logits, np.arange(400) % 2 == 0)


def test_left_out_samples_are_ranked_by_what_others_taught():
    """Labels without any sense: what learned from them knows them, what did not learn from a sample cannot."""
    random = np.random.default_rng(4)
    logits = random.normal(size=(60, 10)).astype(np.float32)
    easy = random.uniform(size=60) < 0.5
    found = fit_best_logistic(logits, easy)
    known = fit_logistic(logits, easy)
    assert ease(known, logits)[easy].mean() - ease(known, logits)[~easy].mean() > 0.2
    assert found.eases[easy].mean() - found.eases[~easy].mean() < 0.2


def test_views_are_learned_from_where_they_rank_left_out_samples_better():
    random = np.random.default_rng(5)
    chances = random.uniform(0.5, 1.0, 300)
    easy = random.uniform(size=300) < chances
    clear = np.stack([chances * 8, np.zeros(300), np.zeros(300)], axis=1)
    logits = np.stack([clear + random.normal(size=clear.shape) for _ in range(10)]).astype(np.float32)
    views = Viewed(logits, np.stack([easy, *(random.uniform(size=(9, 300)) < chances)]))
    found = fit_best_logistic(logits[0], easy, views=views)
    eases = [
        cross_fitted_eases(logits[0], easy, views=learned, by_class=by_class)
        for learned in (None, views)
        for by_class in (True, False)
    ]
    assert mean_gain(found.eases, ~easy) == max(mean_gain(one, ~easy) for one in eases)


def test_losses_of_views_are_learned_from():
    logits, here, there = specialist(400, known=5)
    easy, losses = here | ~there, here & ~there
    views = Viewed(np.stack([logits] * 3), np.stack([easy] * 3), np.stack([losses] * 3))
    found = fit_best_logistic(logits, easy, losses=losses, views=views)
    assert mean_gain(found.eases, (~easy).astype(int) - losses) > 0
    assert views.of(np.arange(400) < 10).losses.shape == (3, 10)


@pytest.mark.parametrize(
    "easy", [np.ones(40, bool), np.zeros(40, bool), np.arange(40) == 0], ids=["all", "none", "one"]
)
def test_where_there_is_nothing_to_learn_nothing_is_fitted(easy):
    logits = np.random.default_rng(6).normal(size=(40, 3)).astype(np.float32)
    found = fit_best_logistic(logits, easy)
    assert found is None or np.isfinite(found.eases).all()
    if easy.all() or not easy.any():
        assert found is None


def test_views_of_other_samples_are_refused():
    logits = np.random.default_rng(7).normal(size=(40, 3)).astype(np.float32)
    easy = np.arange(40) % 2 == 0
    with pytest.raises(InputError, match="of samples of shape"):
        fit_best_logistic(logits, easy, views=Viewed(np.zeros((10, 40, 4), np.float32), np.tile(easy, (10, 1))))
    with pytest.raises(InputError, match="and outcomes of shape"):
        Viewed(np.zeros((10, 40, 4), np.float32), easy)

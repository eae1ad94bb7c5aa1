from __future__ import annotations

import math

import numpy as np
import pytest

from device_sdk.policies.gathering import LEAST_SAMPLES, find_prior, fit_temperature
from device_sdk.supernet.plan import MOST_LOG_RATIO, Prior

CLASSES = 10


def samples(mix: np.ndarray, count: int, *, sharpness: float = 3.0, temperature: float = 1.0, seed: int = 0):
    """Logits [count, classes] of a calibrated model times ``temperature``, and labels [count] drawn from ``mix``.

    A sample of class k has Gaussian features around ``sharpness`` times the k-th unit vector: the log likelihoods are
    linear in them, so that the posterior under the uniform mix is known exactly.
    """
    random = np.random.default_rng(seed)
    labels = random.choice(len(mix), size=count, p=mix)
    features = random.normal(size=(count, len(mix)))
    features[np.arange(count), labels] += sharpness
    return (sharpness * features * temperature).astype(np.float32), labels


def few(count: int = 2) -> np.ndarray:
    mix = np.zeros(CLASSES)
    mix[:count] = 1 / count
    return mix


UNIFORM = np.full(CLASSES, 1 / CLASSES)


def accuracy(logits, labels, prior: Prior | None) -> float:
    offsets = 0.0 if prior is None else prior.temperature * np.array(prior.log_ratios)
    return float(((logits + offsets).argmax(axis=1) == labels).mean())


@pytest.mark.parametrize("labelled", [False, True])
def test_few_classes_are_found_and_raise_the_accuracy_on_other_samples(labelled):
    logits, labels = samples(few(), 150, sharpness=1.5)
    prior = find_prior(logits, labels if labelled else None)
    assert prior is not None
    assert set(np.argsort(prior.log_ratios)[-2:]) == {0, 1}
    new, truth = samples(few(), 2000, sharpness=1.5, seed=1)
    assert accuracy(new, truth, prior) > accuracy(new, truth, None) + 0.1


@pytest.mark.parametrize("labelled", [False, True])
def test_the_mix_of_training_is_left_alone(labelled):
    kept = 0
    for seed in range(20):
        logits, labels = samples(UNIFORM, 150, seed=seed)
        kept += find_prior(logits, labels if labelled else None) is not None
    assert kept <= 2


def test_a_class_that_was_not_seen_can_still_be_answered():
    logits, _ = samples(few(), 150)
    prior = find_prior(logits, None)
    assert prior is not None
    assert min(prior.log_ratios) > -6
    unseen, truth = samples(np.eye(CLASSES)[7], 500, sharpness=5.0, seed=2)
    assert accuracy(unseen, truth, prior) > 0.9


def test_samples_of_one_class_alone_do_not_shut_the_others_out():
    logits, labels = samples(np.eye(CLASSES)[3], 60)
    for prior in (find_prior(logits, None), find_prior(logits, labels)):
        assert prior is not None
        new, truth = samples(UNIFORM, 1000, sharpness=5.0, seed=3)
        assert accuracy(new, truth, prior) > accuracy(new, truth, None) - 0.05


def test_too_few_samples_or_logits_that_are_no_numbers_give_none():
    logits, labels = samples(few(), LEAST_SAMPLES)
    assert find_prior(logits[:1], labels[:1]) is None
    assert find_prior(logits[: LEAST_SAMPLES - 1], None) is None
    logits[4, 2] = np.nan
    assert find_prior(logits, None) is None


def test_garbage_that_looks_like_nothing_gives_none():
    random = np.random.default_rng(0)
    assert find_prior(random.normal(scale=0.1, size=(200, CLASSES)), None) is None


def test_labels_that_the_logits_contradict_give_the_mix_of_the_labels_and_nothing_more():
    random = np.random.default_rng(0)
    noise = random.normal(size=(200, CLASSES))
    assert find_prior(noise, random.integers(0, CLASSES, 200)) is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_also_under_another_mix(temperature):
    for mix in (UNIFORM, few(3)):
        logits, labels = samples(mix, 3000, temperature=temperature)
        assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.15)


def test_a_known_temperature_makes_overconfident_logits_as_good_as_calibrated_ones():
    logits, _ = samples(few(4), 300, sharpness=1.0, temperature=4.0)
    new, truth = samples(few(4), 2000, sharpness=1.0, temperature=4.0, seed=1)
    with_it, without = find_prior(logits, None, temperature=4.0), find_prior(logits, None)
    assert with_it is not None
    assert accuracy(new, truth, with_it) >= accuracy(new, truth, without)


def test_a_thousand_classes_of_which_ten_are_seen():
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 120)
    logits = random.normal(size=(120, 1000)).astype(np.float32) * 2
    logits[np.arange(120), labels] += 6
    prior = find_prior(logits, None)
    assert prior is not None
    assert accuracy(logits, labels, prior) > accuracy(logits, labels, None)
    assert set(np.argsort(prior.log_ratios)[-10:]) == set(range(10))


@pytest.mark.parametrize(
    ("ratios", "temperature"),
    [((), 1.0), ((math.nan,), 1.0), ((MOST_LOG_RATIO + 1,), 1.0), ((0.0,), 0.0), ((0.0,), math.inf)],
)
def test_a_prior_that_makes_no_sense_is_refused(ratios, temperature):
    with pytest.raises(ValueError, match="prior"):
        Prior(ratios, temperature)


def test_samples_of_another_kind_get_no_prior_from_their_answers_alone():
    known, labels = samples(UNIFORM, 400, temperature=0.4)
    temperature, usual = fit_temperature(known, labels), accuracy(known, labels, None)
    assert usual > 0.85
    mixed, _ = samples(few(), 150, temperature=0.4, seed=1)
    assert find_prior(mixed, None, temperature=temperature, usual_accuracy=usual) is not None
    random = np.random.default_rng(0)
    strange = mixed * 0.3 + random.normal(scale=0.4, size=mixed.shape) + np.eye(CLASSES)[4]
    assert find_prior(strange, None, temperature=temperature) is not None
    assert find_prior(strange, None, temperature=temperature, usual_accuracy=usual) is None


def test_two_classes_that_are_confused_on_samples_of_another_kind_are_no_mix_without_labels():
    classes = 7
    logits, labels = samples(np.full(classes, 1 / classes), 177, sharpness=4.0)
    confused = np.flatnonzero(labels == 1)[4:]
    logits[confused, 1], logits[confused, 2] = logits[confused, 2], logits[confused, 1]
    assert np.bincount(logits.argmax(1), minlength=classes)[2] > 1.3 * np.count_nonzero(labels == 2)
    assert find_prior(logits, None) is None

from __future__ import annotations

import time

import numpy as np
import pytest

from device_sdk.errors import InputError
from device_sdk.execution.deciders import confidence, ease, entropy
from device_sdk.policies.router_fitting import RouterSettings, fit_router, fit_router_if_better
from device_sdk.supernet.plan import Abstain, Edge, MaxConfidence, Plan, Subnet
from device_sdk.supernet.plan_json import decode_plan, encode_plan


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32) * 3


def test_what_the_probabilities_tell_is_learned_for_new_samples(logits):
    third = np.sort(logits, axis=1)[:, -3]
    easy = np.sort(logits, axis=1)[:, -2] - third > 1.2  # nothing that the entropy shows
    found = fit_router(logits[:1500], easy[:1500])
    new = ease(found, logits[1500:])
    assert ((new > np.median(new)) == easy[1500:]).mean() > 0.8
    by_entropy = -entropy(logits[1500:])
    assert ((by_entropy > np.median(by_entropy)) == easy[1500:]).mean() < 0.7


def test_the_same_samples_and_seed_give_the_same_router(logits):
    easy = np.sort(logits, axis=1)[:, -1] > 5
    settings = RouterSettings(most_epochs=5)
    assert fit_router(logits, easy, settings) == fit_router(logits, easy, settings)
    assert fit_router(logits, easy, settings) != fit_router(logits, easy, RouterSettings(most_epochs=5, seed=1))


def test_noise_is_not_learned_for_long(logits):
    easy = np.random.default_rng(1).uniform(size=2000) < 0.9
    found = ease(fit_router(logits[:1000], easy[:1000]), logits[1000:])
    assert found.std() < 0.15


def test_a_thousand_samples_take_seconds(logits):
    started = time.perf_counter()
    fit_router(logits[:1000], np.arange(1000) % 7 > 0)
    assert time.perf_counter() - started < 5


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
    hidden = ordered[:, -2] - ordered[:, -3] > 1.2  # nothing that the confidence shows
    shown = confidence(logits) > 0.7
    rival = MaxConfidence(0.0)
    found = fit_router_if_better(logits, hidden, rival)
    assert found == fit_router(logits, hidden)
    assert fit_router_if_better(logits, shown, rival) is None
    assert fit_router_if_better(logits, np.full(2000, True), rival) is None


def test_weights_survive_the_way_through_json(logits):
    found = fit_router(logits, ordered_easy(logits), RouterSettings(most_epochs=2))
    plan = Plan(Subnet((Edge("o0"),)), hard=Abstain(found))
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert np.array_equal(ease(again.hard.decider, logits), ease(found, logits))
    assert len(encode_plan(plan)) < 22_000


def ordered_easy(logits):
    return np.sort(logits, axis=1)[:, -1] > 5

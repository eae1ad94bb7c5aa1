"""Joint search: every fitness by hand, exact over the pool, better by evolution, and never above the limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from device_sdk.errors import InputError, UsageError
from device_sdk.policies.deciding.promises import most_shares
from device_sdk.policies.hybrid.joint_search import (
    HybridMember,
    HybridPool,
    JointSettings,
    best_pair,
    joint_search,
    ranked_pairs,
    separate_pair,
)
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import Entropy


def logits(*answers: tuple[int, float]) -> np.ndarray:
    """[count, 3] from the answered class and how sure it is."""
    found = np.zeros((len(answers), 3), np.float32)
    for row, (answer, sure) in zip(found, answers, strict=True):
        row[answer] = sure
    return found


LABELS = np.array([0, 1, 2, 0])
BASE = logits((0, 4), (1, 3), (0, 1), (1, 2))  # right, right, wrong and least sure, wrong
GLOBAL = logits((0, 5), (2, 5), (2, 5), (0, 5))  # right, wrong, right, right


@pytest.fixture
def pool():
    found = HybridPool(LABELS)
    found.add(bases=[HybridMember("base", BASE, 1.0)], globals_=[HybridMember("global", GLOBAL, 10.0)])
    return found


def test_the_agreement_oracle_sends_what_the_two_disagree_about(pool):
    pair = best_pair(pool, 100.0, JointSettings(fitness="agreement"))
    assert (pair.sent, pair.accuracy) == (0.75, 0.75)
    assert pair.cost == pytest.approx(1 + 0.75 * 10)
    assert best_pair(pool, 8.4, JointSettings(fitness="agreement")) is None


def test_either_counts_what_one_of_them_gets_right_at_the_coverage(pool):
    pair = best_pair(pool, 100.0, JointSettings(fitness="either", coverage=0.75))
    assert (pair.sent, pair.accuracy) == (0.25, 1.0)
    assert pair.cost == pytest.approx(1 + 0.25 * 10)


@pytest.mark.parametrize(
    ("limit", "sent", "accuracy"), [(1.0, 0.0, 0.5), (3.5, 0.25, 0.75), (6.0, 0.5, 1.0), (11.0, 1.0, 0.75)]
)
def test_routing_sends_the_least_sure_as_far_as_the_cost_allows(pool, limit, sent, accuracy):
    pair = best_pair(pool, limit, JointSettings(fitness="routed"))
    assert (pair.sent, pair.accuracy) == (sent, accuracy)
    assert pair.cost == pytest.approx(1 + 10 * sent)


def test_with_a_certainty_the_share_sent_keeps_the_cost_at_its_bound():
    count, share = 200, 0.3
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    logits = random.normal(size=(2, count, 3)).astype(np.float32)
    found = HybridPool(labels)
    found.add(bases=[HybridMember("base", logits[0], 1.0)], globals_=[HybridMember("global", logits[1], 10.0)])
    limit = 1 + 10 * share
    careful, plain = (best_pair(found, limit, JointSettings(fitness="routed", certainty=one)) for one in (0.9, None))
    assert plain.sent == pytest.approx(share)
    sent = round(careful.sent * count)
    assert most_shares(count, 0.9)[sent] <= share < most_shares(count, 0.9)[sent + 1]


def test_routing_keeps_the_least_coverage(pool):
    assert best_pair(pool, 100.0, JointSettings(fitness="routed", least_coverage=0.75)).sent == 0.25


def test_softened_answers_count_by_the_probability_of_the_right_class(pool):
    pair = best_pair(pool, 6.0, JointSettings(fitness="softened", temperature=2.0))
    assert (pair.sent, pair.accuracy) == (0.5, 1.0)

    def share(sure):  # of one class of three that is so sure, at temperature 2
        return np.exp(sure / 2) / (np.exp(sure / 2) + 2)

    assert pair.score == pytest.approx((share(4) + share(3) + share(5) + share(5)) / 4, abs=1e-6)


def test_picking_separately_takes_the_cheapest_base_where_none_leaves_enough(pool):
    pool.add(bases=[HybridMember("poor", logits((1, 1), (0, 1), (1, 1), (1, 1)), 0.5)])
    settings = JointSettings(coverage=0.7)
    assert separate_pair(pool, 3.8, settings).base == "poor"
    assert separate_pair(pool, 4.0, settings).base == "base"
    assert separate_pair(pool, 0.4, settings) is None


def random_pool(seed: int, count: int = 12) -> HybridPool[int]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 60)
    found = HybridPool(labels)
    for key in range(count):
        skill = random.uniform(0.2, 3)
        values = random.normal(0, 1, (60, 4)).astype(np.float32)
        values[np.arange(60), labels] += skill
        cost = skill * random.uniform(1, 3)
        found.add(bases=[HybridMember(key, values, cost)], globals_=[HybridMember(key, values, 2 * cost)])
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [2.0, 4.0, 8.0])
def test_the_best_pair_equals_exhaustive_search(seed, limit):
    pool, settings = random_pool(seed), JointSettings(fitness="routed")
    best = 0.0
    for base, global_ in itertools.product(pool.bases.values(), pool.globals_.values()):
        if base.cost > limit:
            continue
        share = min(1.0, (limit - base.cost) / global_.cost)
        sent = np.argsort(ease(Entropy(0.0), base.logits), kind="stable")[: int(60 * share + 1e-9)]
        answers = base.logits.argmax(axis=1)
        answers[sent] = global_.logits.argmax(axis=1)[sent]
        best = max(best, float((answers == pool.labels).mean()))
    found = best_pair(pool, limit, settings)
    assert (0.0 if found is None else found.accuracy) == pytest.approx(best)


@pytest.mark.parametrize("fitness", ["agreement", "either", "routed", "softened"])
def test_no_pair_costs_more_than_the_limit_and_the_first_is_the_best(fitness):
    pairs = ranked_pairs(random_pool(5), 6.0, JointSettings(fitness=fitness))
    assert pairs
    assert all(pair.cost <= 6.0 + 1e-9 for pair in pairs)
    best = max(pair.accuracy for pair in pairs)
    least = best - 2 * (best * (1 - best) / 60) ** 0.5 if fitness == "softened" else 0.0
    assert pairs == sorted(pairs, key=lambda pair: (pair.accuracy < least, -pair.score, pair.cost))
    assert pairs[0].accuracy >= least


@pytest.mark.parametrize("seed", range(4))
def test_a_joint_choice_is_never_worse_than_picking_separately_on_the_same_samples(seed):
    pool, settings = random_pool(seed), JointSettings(fitness="routed")
    separate, joint = separate_pair(pool, 5.0, settings), best_pair(pool, 5.0, settings)
    assert separate is None or joint.accuracy >= separate.accuracy


def test_evolution_finds_a_network_that_the_pool_did_not_have():
    whole = random_pool(1, count=12)
    start = HybridPool(whole.labels)
    start.add(bases=[whole.bases[0]], globals_=[whole.globals_[0]])
    asked: list[int] = []

    def answer(keys):
        asked.extend(keys)
        return {key: (whole.bases[key], whole.globals_[key]) for key in keys}

    settings = JointSettings(fitness="routed", generations=8, children=3, seed=3)
    found = joint_search(
        start, 6.0, settings, mutate=lambda key, random: (key + 1 + random.below(3)) % 12, answer=answer
    )
    assert len(asked) == len(set(asked)) <= 24
    assert found.accuracy == best_pair(start, 6.0, settings).accuracy
    assert found.accuracy > best_pair(random_pool(1, count=1), 6.0, settings).accuracy


def test_networks_that_cannot_be_mutated_stay(pool):
    asked: list[str] = []
    settings = JointSettings(generations=2)
    found = joint_search(pool, 6.0, settings, mutate=lambda key, random: None, answer=lambda keys: asked.extend(keys))
    assert found == best_pair(pool, 6.0, settings)
    assert not asked


def test_a_limit_that_no_pair_keeps_is_said(pool):
    assert best_pair(pool, 0.5, JointSettings()) is None
    assert joint_search(pool, 0.5, JointSettings(generations=0), mutate=lambda *_: None, answer=dict) is None


@pytest.mark.parametrize("broken", [BASE[:3], np.full_like(BASE, np.nan)])
def test_answers_that_are_not_those_of_the_samples_are_refused(pool, broken):
    with pytest.raises(InputError, match="not those to the 4 samples"):
        pool.add(bases=[HybridMember("other", broken, 1.0)])


def test_a_search_without_parents_is_refused(pool):
    with pytest.raises(UsageError):
        joint_search(pool, 6.0, JointSettings(parents=0), mutate=lambda *_: None, answer=dict)

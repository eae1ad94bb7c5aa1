from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hard_samples.judging import Pair

HERE = np.array([False, True, False, True, True, False, True, True, True, True])
SERVER = np.array([True, True, True, True, False, False, True, True, True, True])
EASES = np.arange(10) / 10


def test_the_hardest_share_is_answered_by_the_server():
    pair = Pair(HERE, SERVER)
    assert np.array_equal(pair.system(EASES, 0.0), HERE)
    assert np.array_equal(pair.system(EASES, 1.0), SERVER)
    assert pair.system(EASES, 0.1).sum() == HERE.sum() + 1
    assert pair.easy.sum() == 8


def test_the_ranking_that_sends_what_gains_is_better_by_what_it_gains():
    pair = Pair(HERE, SERVER)
    gains = pair.gains("ours", pair.easy + EASES, -EASES)
    assert gains["ours_minus_entropy_80"] == pytest.approx(20.0)
    assert gains["ours_minus_entropy_low_80"] < 20.0
    assert pair.area(pair.easy + EASES) > pair.area(-EASES)


def test_a_pool_gains_only_on_what_is_sent():
    pair = Pair(HERE, SERVER)
    pooled = Pair(HERE, np.full(10, True))
    gains = pair.pool_gains("cifar10", pooled, -EASES)  # the last one is sent first, which both answer rightly
    assert gains["cifar10_pool_gain_90"] == 0.0
    found = pair.pool_gains("cifar10", pooled, np.where(SERVER, 1.0, 0.0))
    assert found["cifar10_pool_gain_80"] == pytest.approx(20.0)
    assert found["cifar10_pool_gain_low_80"] < 20.0


def test_the_least_share_for_the_servers_accuracy_is_found():
    pair = Pair(HERE, SERVER)  # 7 and 8 of 10 are right
    assert pair.equal_share(np.where(HERE, 1.0, 0.0)) == pytest.approx(0.1)
    assert pair.equal_share(-EASES) == pytest.approx(1.0)
    assert Pair(SERVER, HERE).equal_share(EASES) == 0.0

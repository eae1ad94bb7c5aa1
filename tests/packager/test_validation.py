from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from packager.macs_ranges import MACS_RANGES
from packager.validation import SUBNETS_PER_RANGE, validate


@pytest.fixture(scope="module")
def images(noise) -> np.ndarray:
    return noise(120, 1, 8, 8).numpy()


@pytest.fixture(scope="module")
def answers(tiny_exported, images) -> np.ndarray:
    with torch.no_grad():
        return tiny_exported.expansion.traced.whole(torch.from_numpy(images)).argmax(1).numpy()


def test_accuracy_of_the_original_path_is_the_models_own(tiny_exported, images, answers):
    labels = answers.copy()
    labels[:30] = (labels[:30] + 1) % 10
    found = validate(tiny_exported, images, labels, seed=0, threads=1)
    assert found.original_accuracy == 0.75


def test_every_range_of_cost_is_reported_with_its_accuracy(tiny_exported, images, answers):
    found = validate(tiny_exported, images, answers, seed=0, threads=1)
    ranges = found.range_accuracy
    assert 2 <= len(ranges) <= MACS_RANGES
    assert all(a.macs_ratio_high <= b.macs_ratio_low for a, b in itertools.pairwise(ranges))
    assert all(1 <= r.subnets <= SUBNETS_PER_RANGE for r in ranges)
    assert all(0 <= r.accuracy <= 1 for r in ranges)
    assert found.original_accuracy == 1.0
    assert min(r.accuracy for r in ranges) < 1.0  # untrained blocks do not answer like the full model


def test_validation_is_a_function_of_the_seed(tiny_exported, images, answers):
    first, second = (validate(tiny_exported, images, answers, seed=4, threads=1) for _ in range(2))
    assert first == second


def test_exits_are_judged_behind_the_original_path(tiny_exported_with_exits, images, answers):
    expansion = tiny_exported_with_exits.expansion
    found = validate(tiny_exported_with_exits, images, answers, seed=0, threads=1).exit_accuracy
    with torch.no_grad():
        features = expansion.traced.features(torch.from_numpy(images))
        for exit_ in expansion.exits:
            expected = exit_.module.eval()(features[exit_.position]).argmax(1).numpy()
            assert found[exit_.id] == np.mean(expected == answers)
    assert found.keys() == {exit_.id for exit_ in expansion.exits}


def test_without_added_blocks_the_original_path_alone_is_evaluated(tiny_exported_with_exits, images, answers):
    found = validate(tiny_exported_with_exits, images, answers, seed=0, threads=1)
    assert found.original_accuracy == 1.0
    assert found.range_accuracy == ()


def test_without_exits_none_is_judged(tiny_exported, images, answers):
    assert validate(tiny_exported, images, answers, seed=0, threads=1).exit_accuracy == {}

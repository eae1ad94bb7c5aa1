from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exits.bounds import Cascade, _temperature
from benchmarks.exits.networks import NETWORKS
from benchmarks.support.bundles import ZOO
from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice

FULL_MS = 10.0


@pytest.fixture
def cascade():
    """Four samples: the first exit is sure and right of one, the second of another, and sure and wrong of a third."""
    early, late = (ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in ("early", "late"))
    yes, no = True, False
    return Cascade(
        (
            ExitSamples(early, np.array([0.9, 0.1, 0.1, 0.1]), np.array([yes, no, no, no]), 2.0, 1.0),
            ExitSamples(late, np.array([0.9, 0.9, 0.8, 0.1]), np.array([yes, yes, no, no]), 5.0, 1.0),
        ),
        np.array([yes, yes, yes, no]),
        np.array([0.9, 0.9, 0.9, 0.9]),
    )


def test_a_sample_takes_the_first_exit_that_is_sure_and_pays_for_each_one_tried(cascade):
    accuracy, mean_ms = cascade.answered({"early": 0.5, "late": 0.5}, FULL_MS)
    assert accuracy == 0.5
    assert mean_ms == pytest.approx(((2 + 1) + (5 + 2) + (5 + 2) + (10 + 2)) / 4)


def test_an_exit_without_a_threshold_is_not_tried(cascade):
    assert cascade.answered({"late": 0.85}, FULL_MS) == (0.75, pytest.approx((6 + 6 + 11 + 11) / 4))
    assert cascade.answered({}, FULL_MS) == (0.75, FULL_MS)


@pytest.mark.parametrize("stretched", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_logits_that_are_too_sure_or_too_doubtful(stretched):
    random = np.random.default_rng(0)
    logits = random.normal(scale=2.0, size=(4000, 5))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([random.choice(5, p=row) for row in chances])
    assert _temperature((stretched * logits).astype(np.float32), labels) == pytest.approx(stretched, rel=0.12)


def test_zoo_and_rivals_train_equally_long():
    for network in NETWORKS:
        recipe = (ZOO / network.recipe).with_name(network.recipe.replace(".toml", "-training.toml")).read_text()
        assert f"\nsteps = {network.positions * network.steps} " in recipe
        assert f"\nexit_positions = {network.positions}\n" in recipe
        for name, value in network.settings.items():
            assert f"\n{name} = {value} " in recipe or f"\n{name} = {value}\n" in recipe

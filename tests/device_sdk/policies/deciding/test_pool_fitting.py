"""How much a device's answer counts beside a server's."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InputError
from device_sdk.policies.deciding.decider_fitting import fit_pool

CLASSES = 6


def answers(count: int, *, skill: float, labels: np.ndarray, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(count, CLASSES))
    found[np.arange(count), labels] += skill
    return (2 * found).astype(np.float32)  # too sure of itself


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, CLASSES, 3000)


def test_two_that_err_apart_are_better_together_on_new_samples(labels):
    device, server = (answers(3000, skill=skill, labels=labels, seed=seed) for skill, seed in ((1.5, 1), (2.5, 2)))
    pool = fit_pool(device[:1500], server[:1500], labels[:1500])
    right = pool.pooled(device, server).argmax(axis=1)[1500:] == labels[1500:]
    assert right.mean() > (server.argmax(axis=1)[1500:] == labels[1500:]).mean() + 0.03


def test_the_weights_are_those_of_the_likelihood(labels):
    """Of normal noise around the label the log odds are linear in both: skill over variance of each."""
    device, server = (answers(3000, skill=skill, labels=labels, seed=seed) for skill, seed in ((1.5, 1), (2.5, 2)))
    pool = fit_pool(device, server, labels)
    assert pool.device == pytest.approx(1.5 / 2, rel=0.1)
    assert pool.server == pytest.approx(2.5 / 2, rel=0.1)


def test_a_device_that_knows_nothing_more_is_left_out(labels):
    server = answers(3000, skill=2.0, labels=labels, seed=2)
    noise = np.random.default_rng(3).normal(size=server.shape).astype(np.float32)
    assert fit_pool(noise, server, labels) is None
    assert fit_pool(server, server, labels) is None
    assert fit_pool(-server + noise, server, labels) is None


def test_networks_that_are_always_right_have_finite_weights(labels):
    sure = np.eye(CLASSES, dtype=np.float32)[labels] * 50
    pool = fit_pool(sure[:40], sure[:40] * 0.5, labels[:40])
    assert pool is None or np.isfinite([pool.device, pool.server]).all()


@pytest.mark.parametrize(
    ("device", "server", "wanted", "said"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4)), [0, 1], "shape"),
        (np.zeros((2, 3)), np.zeros((2, 3)), [0], "to 1 samples"),
        (np.zeros((0, 3)), np.zeros((0, 3)), [], "no samples"),
        (np.full((1, 3), np.nan), np.zeros((1, 3)), [0], "not finite"),
        (np.zeros((1, 3)), np.zeros((1, 3)), [3], "none of 3 classes"),
    ],
)
def test_samples_that_nothing_can_be_fitted_to_are_refused(device, server, wanted, said):
    with pytest.raises(InputError, match=said):
        fit_pool(device, server, np.array(wanted, dtype=np.int64))

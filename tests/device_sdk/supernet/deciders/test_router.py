from __future__ import annotations

import numpy as np
import pytest

from device_sdk.supernet.deciders.port import ease, hard
from device_sdk.supernet.deciders.router import MOST_ROUTER_NEURONS, ROUTER_FEATURES, meta_features
from device_sdk.supernet.plan import Router


def router(hidden=(3, 2), seed: int = 0, threshold: float = 0.5) -> Router:
    numbers = np.random.default_rng(seed).normal(size=Router.weight_count(hidden))
    return Router(threshold, hidden, numbers.astype("<f4").tobytes())


@pytest.mark.parametrize("classes", [2, 9, 10, 11, 1000])
def test_there_are_101_features_for_any_number_of_classes(classes):
    logits = np.random.default_rng(0).normal(size=(6, classes)).astype(np.float32)
    assert meta_features(logits).shape == (6, ROUTER_FEATURES)


def test_features_are_probabilities_entropy_products_and_differences_of_logits():
    logits = np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32))
    found = meta_features(logits)[0]
    assert found[:4] == pytest.approx([0.5, 0.3, 0.2, 0.0], abs=1e-6)
    assert found[10] == pytest.approx(-(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2)), abs=1e-6)
    assert found[11:13] == pytest.approx([0.15, 0.10], abs=1e-6)  # first with second, first with third
    assert found[56:58] == pytest.approx([np.log(5 / 3), np.log(5 / 2)], abs=1e-6)


def test_missing_classes_count_as_nothing():
    few, padded = np.array([[3.0, 1.0]], np.float32), np.array([[3.0, 1.0, -1e4]], np.float32)
    known = np.r_[0:12, 20:56]  # probabilities, entropy and products know no missing classes
    assert meta_features(few)[0][known] == pytest.approx(meta_features(padded)[0][known])
    assert np.count_nonzero(meta_features(few)[0][56:]) == 1  # one pair has a difference


def test_the_order_of_classes_does_not_matter():
    logits = np.random.default_rng(1).normal(size=(4, 12)).astype(np.float32)
    assert np.array_equal(meta_features(logits), meta_features(logits[:, ::-1]))


def test_samples_below_the_threshold_are_hard():
    logits = np.random.default_rng(2).normal(size=(50, 10)).astype(np.float32) * 4
    one = router(threshold=0.4)
    assert np.array_equal(hard(one, logits), ease(one, logits) < 0.4)
    assert ((ease(one, logits) >= 0) & (ease(one, logits) <= 1)).all()


def test_features_far_from_those_of_the_fit_do_no_harm():
    logits = np.array([[1e30, 0.0, -1e30], [0.0, 0.0, 0.0]], dtype=np.float32)
    assert np.isfinite(ease(router(), logits)).all()


@pytest.mark.parametrize(
    ("hidden", "count", "message"),
    [
        ((0, 2), None, "1 to 256 neurons"),
        ((2, MOST_ROUTER_NEURONS + 1), None, "1 to 256 neurons"),
        ((2, 2), 4 * Router.weight_count((2, 2)) - 4, "weights of four bytes"),
    ],
)
def test_a_router_of_another_size_is_refused(hidden, count, message):
    size = 4 * Router.weight_count(hidden) if count is None else count
    with pytest.raises(ValueError, match=message):
        Router(0.5, hidden, bytes(size))


def test_weights_that_are_no_numbers_are_refused():
    weights = np.zeros(Router.weight_count((1, 1)), "<f4")
    weights[7] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        Router(0.5, (1, 1), weights.tobytes())

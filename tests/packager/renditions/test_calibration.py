from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from packager.renditions.calibration import (
    MAX_BYTES,
    MAX_SAMPLES,
    Calibration,
    fitted_and_held_back,
    held_back_last,
    relative_error,
    sample_count,
)
from packager.supernet.expansion import expand
from packager.supernet.input_sizes import usable_sizes
from packager.tasks import Classification
from packager.tracing.traced_model import trace


def test_features_are_those_of_the_original_path(tiny_exported, calibrate):
    calibration = calibrate(tiny_exported.expansion)
    found = list(calibration.features())
    assert [index for index, _ in found] == list(range(7))
    with torch.no_grad():
        expected = tiny_exported.expansion.traced.features(calibration.samples)
    for (_, (features,)), wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(features, wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("available", "largest", "count"),
    [(50_000, 1000, MAX_SAMPLES), (100, 1000, 100), (50_000, MAX_BYTES // 4 // 40, 40), (50_000, MAX_BYTES, 16)],
)
def test_large_models_are_calibrated_on_fewer_samples(available, largest, count):
    assert sample_count(4 * largest, available) == count


def test_errors_are_measured_on_samples_that_ranges_are_not_fitted_to():
    features = np.arange(10, dtype=np.float32)[:, None]
    (fitting,), (held_back,) = fitted_and_held_back((features,))
    assert sorted([*fitting[:, 0], *held_back[:, 0]]) == list(range(10))
    assert held_back[:, 0].tolist() == [8, 9]


def test_samples_that_are_sorted_are_held_back_from_all_over():
    samples = held_back_last(torch.arange(10.0)[:, None])
    assert samples[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 3, 7]


def test_features_do_not_depend_on_how_many_are_computed_at_a_time(tiny_exported, calibrate):
    whole = calibrate(tiny_exported.expansion)
    for (_, (found,)), (_, (expected,)) in zip(replace(whole, batch=7).features(), whole.features(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_few_samples_serve_both():
    features = np.zeros((2, 1), dtype=np.float32)
    (fitting,), (held_back,) = fitted_and_held_back((features,))
    assert len(fitting) == len(held_back) == 2


def test_the_error_is_relative_to_the_spread_of_what_is_expected():
    expected = np.array([1.0, 3.0], dtype=np.float32)
    assert relative_error(expected, expected) == 0
    assert relative_error(np.full(2, 2.0, dtype=np.float32), expected) == pytest.approx(1)
    assert relative_error(expected + np.float32(0.1), expected) == pytest.approx(0.01, rel=1e-3)
    assert relative_error(np.ones(2, dtype=np.float32), np.ones(2, dtype=np.float32)) == 0


def test_ranges_are_measured_at_smaller_input_sizes_too():
    """At the smallest size and one in the middle, behind the features at the model's own size."""
    torch.manual_seed(0)
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *pooled, nn.Linear(4, 3))
    samples = torch.rand(6, 1, 32, 32)
    expansion = expand(trace(net.eval(), samples), max_span=1)
    sizes, _ = usable_sizes(expansion, samples, [(24, 24), (20, 20), (16, 16)], task=Classification())
    calibration = Calibration(expansion, samples, sizes=sizes)
    at_input = next(features for index, features in calibration.features_at_sizes() if index == 0)
    assert [features.shape[-1] for (features,) in at_input] == [32, sizes[len(sizes) // 2].size[0], sizes[-1].size[0]]
    assert [len(features) for (features,) in at_input] == [6, 6, 6]
    plain = [features for _, (features,) in calibration.features()]
    for (_, ((own,), *_)), expected in zip(calibration.features_at_sizes(), plain, strict=True):
        np.testing.assert_array_equal(own, expected)

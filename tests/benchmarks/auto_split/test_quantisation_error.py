from __future__ import annotations

import numpy as np
import pytest

from benchmarks.auto_split.quantisation_error import (
    activation_errors,
    activation_range,
    quantised_activations,
    quantised_weights,
    weight_errors,
)
from device_sdk.errors import InputError

WIDTHS = (2, 4, 6, 8)


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).standard_normal((16, 200)).astype(np.float32)


def test_each_bit_more_lowers_the_error(values):
    for errors in (weight_errors(values, WIDTHS), activation_errors(values, WIDTHS)):
        assert list(errors) == list(WIDTHS)
        assert sorted(errors.values(), reverse=True) == list(errors.values())
        assert errors[8] < 1e-3 < errors[2] < 1


def test_each_filter_has_a_range_of_its_own(values):
    scaled = values * np.geomspace(1e-3, 1e3, 16, dtype=np.float32)[:, None]
    restored = quantised_weights(scaled, 6)
    relative = np.square(restored - scaled).sum(axis=1) / np.square(scaled).sum(axis=1)
    assert relative.max() < 0.01


def test_an_outlier_is_clipped_where_bits_are_few(values):
    spiked = np.append(np.abs(values), np.float32(20))
    assert activation_range(spiked, 2)[1] < 20
    assert len(np.unique(quantised_activations(spiked, 2, 0.0, 3.0))) == 4


def test_zero_stays_zero():
    values = np.array([-1.0, 0.0, 2.0], np.float32)
    assert quantised_activations(values, 4, -1.0, 2.0)[1] == 0.0
    assert quantised_weights(np.zeros((2, 3), np.float32), 4).any() == np.False_


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(InputError):
        weight_errors(np.array([[np.nan]], np.float32), WIDTHS)

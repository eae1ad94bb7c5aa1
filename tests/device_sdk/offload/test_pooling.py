"""Answers of a device and a server together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import LogarithmicPool


def test_pooled_answers_are_the_product_of_powers_of_both_distributions():
    random = np.random.default_rng(0)
    device, server = random.normal(size=(2, 4, 3)).astype(np.float32)
    found = LogarithmicPool(0.5, 2.0).pooled(device, server)
    product = np.exp(0.5 * device + 2.0 * server)
    own = np.exp(found)
    np.testing.assert_allclose(own / own.sum(1, keepdims=True), product / product.sum(1, keepdims=True), rtol=1e-5)
    assert found.dtype == np.float32


def test_an_answer_that_is_none_spoils_the_pool_and_is_not_hidden():
    broken = np.array([[np.nan, 1.0]], np.float32)
    assert np.isnan(LogarithmicPool(1.0, 1.0).pooled(broken, np.zeros((1, 2), np.float32))).any()


@pytest.mark.parametrize("weights", [(-0.1, 1.0), (math.nan, 1.0), (1.0, math.inf), (0.0, 0.0)])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(UsageError, match="weights"):
        LogarithmicPool(*weights)

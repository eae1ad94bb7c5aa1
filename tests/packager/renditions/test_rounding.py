from __future__ import annotations

import numpy as np
import pytest

from packager.renditions.rounding import InputMoments, quantise, quantise_for_inputs


def moments(before, after=None):
    """Of inputs [groups, rows, columns], about their means."""
    after = before if after is None else after
    count = after.shape[1]
    mean, original = after.mean(axis=1), before.mean(axis=1)
    centred, centred_before = after - mean[:, None], before - original[:, None]
    return InputMoments(
        count,
        mean,
        centred.swapaxes(1, 2) @ centred / count,
        original,
        centred_before.swapaxes(1, 2) @ centred / count,
    )


def answers(weights, inputs):
    groups = len(inputs)
    return np.einsum("gok,gnk->gno", weights.reshape(groups, -1, inputs.shape[2]), inputs)


def correlated(groups, rows, columns, seed=0):
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(columns, columns)) * (0.5 ** np.arange(columns))[:, None]
    return random.normal(size=(groups, rows, columns)) @ mixing + 1.0


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize(("groups", "channels", "columns"), [(1, 12, 90), (1, 3, 130), (8, 1, 9), (2, 5, 20)])
def test_answers_to_real_inputs_change_less_than_by_rounding_to_the_nearest(bits, groups, channels, columns):
    inputs = correlated(groups, 2000, columns)
    weights = np.random.default_rng(1).normal(size=(groups * channels, columns)).astype(np.float32)
    found = quantise_for_inputs(weights, bits, moments(inputs))
    expected = answers(weights, inputs)
    bias = found.bias_change.reshape(groups, 1, -1)
    mine = np.square(answers(found.weights.expanded(), inputs) + bias - expected).mean()
    nearest = np.square(answers(quantise(weights, bits).expanded(), inputs) - expected).mean()
    assert mine < 0.5 * nearest
    assert found.weights.values.max() < 2**bits


def test_the_bias_takes_the_change_of_every_channel_s_mean():
    inputs = correlated(1, 500, 20)
    weights = np.random.default_rng(1).normal(size=(7, 20)).astype(np.float32)
    found = quantise_for_inputs(weights, 2, moments(inputs))
    change = answers(weights, inputs) - answers(found.weights.expanded(), inputs)
    np.testing.assert_allclose(found.bias_change, change.mean(axis=(0, 1)), atol=1e-4)


def test_weights_make_up_for_errors_of_the_layers_before():
    before = correlated(1, 2000, 20)
    after = before * 0.8  # rounded layers before it answer with less
    weights = np.random.default_rng(1).normal(size=(7, 20)).astype(np.float32)
    found = quantise_for_inputs(weights, 8, moments(before, after))
    expected = answers(weights, before)
    mine = np.square(answers(found.weights.expanded(), after) + found.bias_change - expected).mean()
    blind = quantise_for_inputs(weights, 8, moments(after))
    theirs = np.square(answers(blind.weights.expanded(), after) + blind.bias_change - expected).mean()
    assert mine < 0.2 * theirs


@pytest.mark.parametrize("columns", [30, 64])
def test_inputs_that_never_vary_and_fewer_rows_than_columns_leave_finite_weights(columns):
    inputs = correlated(1, 8, columns)
    inputs[:, :, ::2] = 3.0
    weights = np.random.default_rng(1).normal(size=(4, columns)).astype(np.float32)
    weights[0] = 0.25  # a channel of equal weights
    found = quantise_for_inputs(weights, 4, moments(inputs))
    assert np.isfinite(found.weights.expanded()).all()
    assert np.isfinite(found.bias_change).all()
    constant = quantise_for_inputs(weights, 4, moments(np.full((1, 5, columns), 2.0)))
    np.testing.assert_allclose(constant.weights.expanded(), quantise(weights, 4).expanded(), atol=0.5)

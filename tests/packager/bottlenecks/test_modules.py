"""The closed-form start: principal components, and what rounding does to it."""

from __future__ import annotations

import pytest
import torch

from packager.bottlenecks.modules import components


@pytest.fixture
def features(noise):
    """Images [n, 6, 4, 4] whose channels mix three directions."""
    basis = noise(6, 3, seed=1)
    return torch.einsum("ck,nkhw->nchw", basis, noise(32, 3, 4, 4)) + 2.0


def restored(features, channels):
    rows = features.movedim(1, 3).reshape(-1, features.shape[1])
    with torch.no_grad():
        return components(rows).bottleneck(channels, maps=True)(features)


def test_as_many_channels_as_there_are_directions_restore_the_features_but_for_rounding(features):
    error = float((restored(features, 3) - features).square().mean() / features.var())
    assert error < 0.02
    assert float((restored(features, 2) - features).square().mean() / features.var()) > error


def test_gradients_pass_the_rounding(features):
    rows = features.movedim(1, 3).reshape(-1, 6)
    module = components(rows).bottleneck(2, maps=True)
    module(features).square().mean().backward()
    assert all(float(one.grad.abs().sum()) > 0 for one in module.parameters() if one.dim() > 1)


def test_features_without_negative_values_are_restored_without(features):
    assert float(restored(features.relu(), 2).min()) >= 0


def test_features_of_vectors_have_their_channels_last(noise):
    vectors = noise(64, 5)
    module = components(vectors).bottleneck(4, maps=False)
    assert module(vectors).shape == vectors.shape

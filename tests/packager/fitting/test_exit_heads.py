from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.progress import SilentProgress
from packager.branch_zoo.plain import attach_exits
from packager.fitting.exit_heads import LEAST_SAMPLES, MOST_SAMPLES, fit_exits, sample_count, with_exit_states
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace

CLASSES = 3


@pytest.fixture(scope="module")
def expansion():
    torch.manual_seed(0)
    layers = [(nn.Conv2d(a, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for a in (3, 8, 8, 8)]
    net = nn.Sequential(
        *(one for layer in layers for one in layer), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )
    return attach_exits(expand(trace(net.eval(), torch.rand(2, 3, 12, 12)), max_span=1), count=2)


def images(count, seed, *, labelled=True):
    """Noise, brighter in the channel of the class, in batches."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    pixels = random.normal(size=(count, 3, 12, 12)).astype(np.float32)
    pixels[np.arange(count), labels] += 1.0
    given = labels if labelled else np.full(count, -1)
    for at in range(0, count, 50):
        yield pixels[at : at + 50], given[at : at + 50]


def right(expansion, exit_):
    """The share of new images that an exit classifies rightly."""
    hits = []
    with torch.no_grad():
        for pixels, labels in images(300, 9):
            features = expansion.traced.features(torch.from_numpy(pixels))[exit_.position]
            hits.append(exit_.module.eval()(features).argmax(1).numpy() == labels)
    return float(np.concatenate(hits).mean())


def test_an_exit_of_one_linear_layer_is_right_without_any_step(expansion):
    states = fit_exits(expansion, images(400, 0), progress=SilentProgress())
    pooled = [exit_ for exit_ in expansion.exits if exit_.branch == "pooled"]
    assert pooled
    assert set(states) == {exit_.id for exit_ in pooled}  # the others have convolutions, which need steps
    fitted = with_exit_states(expansion, states)
    assert all(right(fitted, exit_) > 0.9 for exit_ in pooled)
    assert f"{len(pooled)} of {len(expansion.exits)} exits start from a fit" in fitted.notes[-1]


def test_without_labels_the_full_model_teaches(expansion):
    states = fit_exits(expansion, images(400, 0, labelled=False), progress=SilentProgress())
    fitted = with_exit_states(expansion, states)
    pixels, _ = next(images(50, 9))
    with torch.no_grad():
        along = fitted.traced.features(torch.from_numpy(pixels))
        for exit_ in fitted.exits:
            if exit_.id in states:
                ours, theirs = (one.softmax(1) for one in (exit_.module.eval()(along[exit_.position]), along[-1]))
                assert float((ours - theirs).abs().mean()) < 0.05


def test_a_few_samples_fit_nothing(expansion):
    assert fit_exits(expansion, images(LEAST_SAMPLES - 1, 0), progress=SilentProgress()) == {}


def test_large_samples_are_fewer():
    assert sample_count(1000) == MOST_SAMPLES
    assert LEAST_SAMPLES < sample_count(600_000) < 1000
    assert sample_count(10**9) == LEAST_SAMPLES

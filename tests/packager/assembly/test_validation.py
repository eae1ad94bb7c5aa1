from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import torch

from packager.assembly.validation import FIRST_SAMPLES, ORIGINAL_ERROR, SUBNETS_PER_RANGE, validate
from packager.supernet.macs_ranges import MACS_RANGES


@pytest.fixture(scope="module")
def images(noise) -> np.ndarray:
    return noise(120, 1, 8, 8).numpy()


@pytest.fixture(scope="module")
def answers(tiny_exported, images) -> np.ndarray:
    with torch.no_grad():
        return tiny_exported.expansion.traced.whole(torch.from_numpy(images)).argmax(1).numpy()


def judged(exported, images, labels, **choices):
    """Validated on samples that are spread evenly, nine at a time."""

    def batches(count):
        chosen = np.linspace(0, len(images) - 1, count, dtype=int)
        for some in np.array_split(chosen, -(-count // 9)):
            yield images[some], labels[some]

    return validate(exported, batches, len(images), **({"seed": 0, "threads": 1} | choices))


def test_accuracy_of_the_original_path_is_the_models_own(tiny_exported, images, answers):
    labels = answers.copy()
    labels[:30] = (labels[:30] + 1) % 10
    found = judged(tiny_exported, images, labels)
    assert found.original_accuracy == 0.75


def test_every_range_of_cost_is_reported_with_its_accuracy(tiny_exported, images, answers):
    found = judged(tiny_exported, images, answers)
    ranges = found.range_accuracy
    assert 2 <= len(ranges) <= MACS_RANGES
    assert all(a.macs_ratio_high <= b.macs_ratio_low for a, b in itertools.pairwise(ranges))
    assert all(1 <= r.subnets <= SUBNETS_PER_RANGE for r in ranges)
    assert all(0 <= r.accuracy <= 1 for r in ranges)
    assert found.original_accuracy == 1.0
    assert min(r.accuracy for r in ranges) < 1.0  # untrained blocks do not answer like the full model


def test_validation_is_a_function_of_the_seed(tiny_exported, images, answers):
    first, second = (judged(tiny_exported, images, answers, seed=4) for _ in range(2))
    assert first == second


def test_exits_are_judged_behind_the_original_path(tiny_exported_with_exits, images, answers):
    expansion = tiny_exported_with_exits.expansion
    found = judged(tiny_exported_with_exits, images, answers).exit_accuracy
    with torch.no_grad():
        features = expansion.traced.features(torch.from_numpy(images))
        for exit_ in expansion.exits:
            expected = exit_.module.eval()(features[exit_.position]).argmax(1).numpy()
            assert found[exit_.id] == np.mean(expected == answers)
    assert found.keys() == {exit_.id for exit_ in expansion.exits}


def test_without_added_blocks_the_original_path_alone_is_evaluated(tiny_exported_with_exits, images, answers):
    found = judged(tiny_exported_with_exits, images, answers)
    assert found.original_accuracy == 1.0
    assert found.range_accuracy == ()


def test_without_exits_none_is_judged(tiny_exported, images, answers):
    assert judged(tiny_exported, images, answers).exit_accuracy == {}


# How many samples, and what for


@pytest.fixture(scope="module")
def many(noise, tiny_exported) -> tuple[np.ndarray, np.ndarray]:
    """Images of which the model gets nine in ten right."""
    images = noise(3000, 1, 8, 8, seed=2).numpy()
    with torch.no_grad():
        labels = tiny_exported.expansion.traced.whole(torch.from_numpy(images)).argmax(1).numpy()
    labels[::10] = (labels[::10] + 1) % 10
    return images, labels


def test_no_more_samples_are_run_than_the_standard_errors_need(tiny_exported, many):
    found = judged(tiny_exported, *many)
    assert 400 < found.samples < 2000
    assert found.standard_error == pytest.approx(ORIGINAL_ERROR, rel=0.3)
    assert found.original_accuracy == pytest.approx(0.9, abs=4 * found.standard_error)
    assert FIRST_SAMPLES < found.range_samples < found.samples  # several subnets have their turn on them
    assert len(found.range_errors) == len(found.range_accuracy)
    assert all(0 <= error < 0.05 for error in found.range_errors)


def test_few_samples_are_all_run(tiny_exported, images, answers):
    found = judged(tiny_exported, images, answers)
    assert found.samples == len(images)
    assert found.standard_error == 0.0


class Clock:
    """A clock on which every look takes ``step`` seconds."""

    def __init__(self, step: float) -> None:
        self._now, self._step = 0.0, step

    def __call__(self) -> float:
        self._now += self._step
        return self._now


@pytest.mark.parametrize("seconds", [0.0, 48.0, 100.0, 300.0])
def test_with_few_seconds_fewer_samples_are_run(tiny_exported, many, seconds):
    found = judged(tiny_exported, *many, seconds=seconds, clock=Clock(48.0))  # the first 48 samples take 48 seconds
    assert FIRST_SAMPLES <= found.range_samples <= max(FIRST_SAMPLES, seconds)
    assert found.samples < judged(tiny_exported, *many).samples
    assert found.samples >= FIRST_SAMPLES


def test_progress_reaches_the_end_in_small_steps(tiny_exported, many):
    steps, notes = [], []

    class Watched:
        @contextlib.contextmanager
        def task(self, name, total, *, done=0.0):
            assert (name, total) == ("validate", 1.0)
            yield self

        def advance(self, amount=1.0):
            steps.append(amount)

        def note(self, text):
            notes.append(text)

    judged(tiny_exported, *many, progress=Watched())
    assert sum(steps) == pytest.approx(1.0)
    assert max(steps) < 0.1
    assert notes[0] == "loading o0"
    assert notes[-1].endswith("samples, the original path")

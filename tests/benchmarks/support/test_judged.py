from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.support.judged import Loaded, answered_rightly, measured_ratios
from benchmarks.support.paired import bootstrap_points
from device_sdk.data.inputs import PreparedInputs
from device_sdk.runtimes.port import StopSignal


class Brightest:
    """A model whose answer is the channel with the largest mean."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.shapes.append(inputs[0].shape)
        return [inputs[0].mean(axis=(2, 3))]

    def run_until(self, inputs: Sequence[np.ndarray], stop: StopSignal) -> list[np.ndarray] | None:
        return self.run(inputs)

    def close(self) -> None:
        """Nothing to close."""


def test_models_answer_each_sample_at_their_own_size() -> None:
    labels = np.arange(100) % 3
    samples = np.zeros((100, 3, 8, 8), dtype=np.float32)
    samples[np.arange(100), labels] = 1.0
    own, small = Brightest(), Brightest()
    models = {"own": Loaded(own, (3, 8, 8)), "small": Loaded(small, (3, 4, 4))}
    found = answered_rightly(models, PreparedInputs(samples), np.where(labels == 2, 0, labels))
    assert np.array_equal(found["own"], labels != 2)
    assert np.array_equal(found["small"], labels != 2)
    assert {shape[1:] for shape in small.shapes} == {(3, 4, 4)}


def test_latencies_are_relative_to_the_reference() -> None:
    models = {name: Loaded(Brightest(), (3, 8, 8)) for name in ("one", "two")}
    assert measured_ratios(models, "one")["one"] == 1.0


def test_an_interval_is_empty_where_nothing_differs_and_holds_the_mean_elsewhere() -> None:
    assert bootstrap_points(np.zeros(50)) == (0.0, 0.0)
    low, high = bootstrap_points(np.where(np.arange(100) < 30, 1.0, 0.0))
    assert low < 30.0 < high

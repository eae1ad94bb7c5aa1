"""What every runtime adapter must do: run for each one that is registered and present (``kit``, conftest.py)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from device_sdk.errors import CompositionError, MissingExtraError, RuntimeFailedError, UsageError
from device_sdk.runtimes import RUNTIMES, make_runtime
from device_sdk.runtimes.port import StopSignal

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def samples(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).random((batch, 4), dtype=np.float32)


def test_an_unknown_runtime_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="no runtime magic") as caught:
        make_runtime("magic", threads=1)
    assert all(name in caught.value.hint for name in RUNTIMES)


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_provider_that_is_not_there_is_refused_with_those_that_are(name):
    try:
        make_runtime(name, threads=1)
    except MissingExtraError as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeFailedError, match="no MagicProvider here") as caught:
        make_runtime(name, threads=1, provider="MagicProvider")
    assert caught.value.hint.startswith("it has ")


def test_any_batch_size_runs(kit, engine):
    loaded = engine.load(kit.matmul)
    for batch in (1, 3, 64, 1):
        [output] = loaded.run([samples(batch)])
        assert output.dtype == np.float32
        np.testing.assert_allclose(output, samples(batch) @ WEIGHT, rtol=1e-5)


def test_several_tensors_go_in_and_come_out_in_the_order_of_the_cut_point(kit, engine):
    loaded = engine.load(kit.sum_and_difference)
    first, second = np.full((2, 2, 3), 5, np.float32), np.full((2, 2, 3), 3, np.float32)
    total, difference = loaded.run([first, second])
    assert (total == 8).all()
    assert (difference == 2).all()


@pytest.mark.parametrize("batch", [1, 40])
def test_an_exit_answers_after_the_tensors_of_the_cut_point(kit, engine, batch):
    features, answer = engine.load(kit.with_exit).run([samples(batch)])
    np.testing.assert_allclose(features, samples(batch) @ WEIGHT, rtol=1e-5)
    np.testing.assert_allclose(answer, 2 * features, rtol=1e-5)


def test_threads_may_run_it_at_once(kit, engine):
    loaded = engine.load(kit.matmul)
    inputs = [np.full((64, 4), number, np.float32) for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda one: loaded.run([one])[0], inputs))
    for sample, output in zip(inputs, outputs, strict=True):
        np.testing.assert_allclose(output, sample @ WEIGHT)


def test_what_it_answered_is_not_overwritten_by_the_next_run(kit, engine):
    loaded = engine.load(kit.with_exit)
    first = loaded.run([np.ones((1, 4), np.float32)])
    kept = [array.copy() for array in first]
    loaded.run([np.zeros((1, 4), np.float32)])
    assert all(map(np.array_equal, first, kept))


def test_the_inputs_are_left_alone_and_may_be_read_only_or_strided(kit, engine):
    loaded = engine.load(kit.matmul)
    inputs = samples(6)[::2]
    kept = inputs.copy()
    inputs.setflags(write=False)
    np.testing.assert_allclose(loaded.run([inputs])[0], kept @ WEIGHT, rtol=1e-5)
    assert np.array_equal(inputs, kept)


def test_it_may_be_closed_twice_and_then_refuses_to_run(kit, engine):
    loaded = engine.load(kit.matmul)
    loaded.close()
    loaded.close()
    with pytest.raises(RuntimeFailedError, match="closed"):
        loaded.run([samples(1)])


def test_closing_one_leaves_others_of_the_same_stretch_alone(kit, engine):
    first, second = engine.load(kit.matmul), engine.load(kit.matmul)
    first.close()
    assert second.run([samples(1)])[0].shape == (1, 3)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [np.ones((1, 4), np.float32)] * 2,
        [np.ones((1, 5), np.float32)],
        [np.ones(4, np.float32)],
        [np.ones((1, 4))],
        [np.ones((1, 4), np.int64)],
        [None],
    ],
    ids=["none", "too many", "shape", "rank", "float64", "int64", "no array"],
)
def test_wrong_inputs_are_a_runtime_error_and_the_next_run_works(kit, engine, inputs):
    loaded = engine.load(kit.matmul)
    with pytest.raises(RuntimeFailedError):
        loaded.run(inputs)
    assert loaded.run([samples(1)])[0].shape == (1, 3)


def test_a_model_that_is_none_is_refused_in_one_line(kit, engine):
    for what, stretch in kit.broken.items():
        with pytest.raises((RuntimeFailedError, CompositionError)) as caught:
            engine.load(stretch)
        assert "\n" not in str(caught.value), what
    assert engine.load(kit.matmul).run([samples(1)])[0].shape == (1, 3)


def test_its_identity_is_stable_and_tells_the_number_of_threads(kit):
    assert make_runtime(kit.name, threads=1).identity == make_runtime(kit.name, threads=1).identity
    assert make_runtime(kit.name, threads=1).identity != make_runtime(kit.name, threads=2).identity


def test_a_lean_one_answers_the_same(kit, engine):
    [output] = make_runtime(kit.name, threads=1, lean=True).load(kit.matmul).run([samples(3)])
    assert np.array_equal(output, engine.load(kit.matmul).run([samples(3)])[0])


def test_until_it_is_stopped_it_runs_as_ever(kit, engine):
    loaded, stop = engine.load(kit.with_exit), StopSignal()
    assert all(map(np.array_equal, loaded.run_until([samples(3)], stop), loaded.run([samples(3)])))


def test_once_stopped_it_runs_nothing_and_others_run_on(kit, engine):
    loaded, stop = engine.load(kit.matmul), StopSignal()
    stop.set()
    stop.set()
    assert loaded.run_until([samples(3)], stop) is None
    assert loaded.run_until([samples(3)], StopSignal())[0].shape == (3, 3)
    assert loaded.run([samples(3)])[0].shape == (3, 3)


def test_what_is_wrong_is_an_error_until_it_is_stopped(kit, engine):
    loaded = engine.load(kit.matmul)
    with pytest.raises(RuntimeFailedError):
        loaded.run_until([np.ones((1, 5), np.float32)], StopSignal())
    loaded.close()
    with pytest.raises(RuntimeFailedError, match="closed"):
        loaded.run_until([samples(1)], StopSignal())

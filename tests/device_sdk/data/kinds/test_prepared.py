from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.prepared import TensorPreprocessing
from device_sdk.data.kinds.tensor_files import load_tensors
from device_sdk.errors import DataError, InputError


def test_values_are_normalised_per_channel():
    preparer = preparer_of(TensorPreprocessing((1.0, 2.0), (2.0, 4.0)), (2, 3), {}.__getitem__)
    found = preparer.prepare(np.array([[1, 3, 5], [2, 6, 10]]))
    assert found.dtype == np.float32
    assert found.tolist() == [[[0, 1, 2], [0, 1, 2]]]


def test_without_means_values_stay_as_they_are():
    preparer = preparer_of(TensorPreprocessing(), (4,), {}.__getitem__)
    values = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert np.array_equal(preparer.prepare(values), values)
    assert np.array_equal(preparer.inputs(list(values)).take(np.array([3, 1])), values[[3, 1]])


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 5)), np.full(4, np.inf), np.array(["a"] * 4)])
def test_other_shapes_and_types_are_refused(values):
    with pytest.raises(InputError, match="expected finite numbers of shape"):
        preparer_of(TensorPreprocessing(), (4,), {}.__getitem__).prepare(values)


@pytest.mark.parametrize(("mean", "std"), [((1.0,), ()), ((1.0,), (0.0,)), ((float("nan"),), (1.0,))])
def test_senseless_means_and_deviations_are_refused(mean, std):
    with pytest.raises(ValueError, match="mean"):
        TensorPreprocessing(mean, std)


def test_a_file_has_values_and_labels(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "a.npz", x=values, y=np.array([2, 0, 2, 1]))
    found = load_tensors(str(tmp_path / "a.npz"), limit=None, labelled=True)
    assert np.array_equal(np.stack(found.samples), values)
    assert found.indexed
    assert found.relabelled(("a", "b", "c")).labels.tolist() == [2, 0, 2, 1]


def test_what_cannot_be_read_is_said(tmp_path):
    np.savez(tmp_path / "no_x.npz", y=np.zeros(3))
    np.savez(tmp_path / "counts.npz", x=np.zeros((3, 2)), y=np.zeros(2))
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2))
    (tmp_path / "text.npz").write_text("x")
    for name, message in (
        ("no_x", "has no array x"),
        ("counts", r"y has shape \[2\] for 3 samples"),
        ("objects", "cannot be read as .npz"),
        ("text", "cannot be read as .npz"),
    ):
        with pytest.raises(DataError, match=message):
            load_tensors(str(tmp_path / f"{name}.npz"), limit=None, labelled=True)

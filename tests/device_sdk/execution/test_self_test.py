from __future__ import annotations

import hashlib

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs, matches, sample_outputs
from device_sdk.errors import SelfTestError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.blocks import CutPoint, Golden, TensorSpec


def stated_rule(seed, cut_point, tensor, count, *, low, high):
    """docs/bundle_format.md, word by word."""
    random = SplitMix64(seed + 1024 * cut_point + tensor)
    unit = [np.float32((random.next() >> 40) * 2.0**-24) for _ in range(count)]
    return np.array([np.float32(low) + (np.float32(high) - np.float32(low)) * u for u in unit], dtype=np.float32)


def test_golden_inputs_follow_the_stated_stream_rule():
    cut = CutPoint(
        3, (TensorSpec("cut_3_0", (2, 3), low=-1.5, high=2.25), TensorSpec("cut_3_1", (4,), low=0.1, high=0.3))
    )
    first, second = golden_inputs(cut, seed=11, batch=2)
    assert (first.shape, first.dtype, second.shape) == ((2, 2, 3), np.float32, (2, 4))
    assert np.array_equal(first.ravel(), stated_rule(11, 3, 0, 12, low=-1.5, high=2.25))
    assert np.array_equal(second.ravel(), stated_rule(11, 3, 1, 8, low=0.1, high=0.3))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int64", -5, 5), ("int32", 0, 100), ("int8", -128, 128), ("uint8", 0, 256), ("bool", 0, 2)],
)
def test_integers_are_rounded_down(dtype, low, high):
    [drawn] = golden_inputs(CutPoint(0, (TensorSpec("cut_0", (500,), dtype, low, high),)), seed=1, batch=1)
    expected = np.floor(stated_rule(1, 0, 0, 500, low=low, high=high))
    assert drawn.dtype == dtype
    assert np.array_equal(drawn.ravel().astype(np.float32), expected)
    assert low <= int(drawn.min()) <= int(drawn.max()) < high


def test_float16_is_rounded_from_float32():
    [drawn] = golden_inputs(CutPoint(0, (TensorSpec("cut_0", (9,), "float16"),)), seed=1, batch=1)
    assert np.array_equal(drawn.ravel(), stated_rule(1, 0, 0, 9, low=0, high=1).astype(np.float16))


def test_samples_of_a_large_output_are_drawn_and_those_of_a_small_one_are_all():
    random = SplitMix64(4000)
    drawn = tuple(float(random.below(4000)) for _ in range(32))
    assert sample_outputs([np.arange(4000).reshape(2, 2000)]) == (drawn,)
    assert sample_outputs([np.arange(5)]) == ((0.0, 1.0, 2.0, 3.0, 4.0),)
    assert sample_outputs([np.arange(2), np.array([[True]])]) == ((0.0, 1.0), (1.0,))


def test_outputs_match_within_the_tolerance_and_not_beyond():
    golden = Golden(((1.0, 2.0),), tolerance=0.125)
    assert matches(golden, [np.array([[1.125, 1.875]], dtype=np.float32)])
    assert not matches(golden, [np.array([[1.126, 2.0]], dtype=np.float32)])
    assert not matches(golden, [np.array([[np.nan, 2.0]], dtype=np.float32)])


def test_another_number_of_outputs_or_elements_does_not_match():
    golden = Golden(((1.0, 2.0),), tolerance=1.0)
    right = np.array([1.0, 2.0])
    assert not matches(golden, [])
    assert not matches(golden, [right, right])
    assert not matches(golden, [np.array([1.0, 2.0, 3.0])])


def test_a_good_bundle_passes(bundle, runtime):
    run_self_test(Workspace(bundle, runtime))


def alter_filter(own_bundle, block):
    """Change one filter of a block so that all digests and sizes fit again: an exporter's fault, not a transport's."""
    onnx = pytest.importorskip("onnx")
    path = own_bundle.blob(block)
    fragment = onnx.GraphProto.FromString(path.read_bytes())
    weight = onnx.numpy_helper.to_array(fragment.initializer[0]).copy()
    weight[0] += 3
    fragment.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, fragment.initializer[0].name))
    data = fragment.SerializeToString()
    name = hashlib.sha256(data).hexdigest()
    (own_bundle.folder / "blobs" / name).write_bytes(data)

    def rename(manifest):
        [found] = [one for one in manifest["blocks"] if one["id"] == block]
        found["renditions"][0] |= {"blob": name, "size_bytes": len(data)}

    own_bundle.edit(rename, sign=True)


@pytest.mark.parametrize("block", ["o0", "m1-4"])
def test_an_altered_filter_is_found_even_if_all_digests_are_right(own_bundle, runtime, block):
    alter_filter(own_bundle, block)
    bundle = Bundle.open(own_bundle.folder, trust=own_bundle.public_key)
    bundle.verify()
    with pytest.raises(SelfTestError, match=f"block {block} does not reproduce .* onnxruntime") as caught:
        run_self_test(Workspace(bundle, runtime))
    assert caught.value.hint


def test_wrong_golden_outputs_of_the_original_path_are_found(own_bundle, runtime):
    def change(manifest):
        manifest["self_test"]["original"]["samples"][0][0] += 1.0

    own_bundle.edit(change)
    with pytest.raises(SelfTestError, match="the original path"):
        run_self_test(Workspace(Bundle.open(own_bundle.folder), runtime))

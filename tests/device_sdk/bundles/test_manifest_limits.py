from __future__ import annotations

import copy
import json
import time

import pytest

from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.errors import ManifestError

TIMES_AS_LONG_AS_READING = 10


@pytest.fixture
def manifest(tiny_bundle):
    return copy.deepcopy(json.loads(tiny_bundle.manifest_path.read_bytes()))


def of_kind(manifest, kind):
    return next(block for block in manifest["blocks"] if block["kind"] == kind)


def small(rendition, **changes):
    return {**rendition, "golden": {"samples": [], "tolerance": 0.0}, "shared": [], **changes}


def with_many_blocks(manifest):
    block = of_kind(manifest, "merged")
    rendition = small(block["renditions"][0])
    manifest["blocks"] += [{**block, "id": f"x{n}", "renditions": [rendition]} for n in range(100_000)]


def with_many_cut_points(manifest):
    manifest["cut_points"] += [{"index": n, "tensors": []} for n in range(100_000)]


def with_many_renditions(manifest):
    block = of_kind(manifest, "original")
    block["renditions"] += [small(block["renditions"][0], name=f"r{n}") for n in range(100_000)]


def with_many_exits(manifest):
    exit_ = manifest["exits"][0]
    renditions = [small(exit_["renditions"][0])]
    manifest["exits"] += [{**exit_, "id": f"x{n}", "renditions": renditions} for n in range(100_000)]


def with_many_tensors(manifest):
    manifest["cut_points"][1]["tensors"] *= 100_000


def with_many_axes(manifest):
    manifest["cut_points"][1]["tensors"][0]["shape"] = [1] * 100_000


def with_many_input_sizes(manifest):
    golden = {"samples": [], "tolerance": 0.0}
    manifest["input_sizes"] = [{"size": [n + 1, 7], "shapes": [], "golden": golden} for n in range(100_000)]


def with_many_shared_blobs(manifest):
    of_kind(manifest, "original")["renditions"][0]["shared"] = [f"{n:064x}" for n in range(100_000)]


def with_a_huge_tensor(manifest):
    manifest["cut_points"][1]["tensors"][0]["shape"] = [1 << 20, 1 << 20]


def with_a_long_name(manifest):
    of_kind(manifest, "original")["renditions"][0]["name"] = "x" * 1_000_000


def with_a_long_class_name(manifest):
    manifest["task"]["class_names"][0] = "x" * 1_000_000


TOO_MANY = [value for name, value in sorted(globals().items()) if name.startswith("with_")]


@pytest.mark.slow
@pytest.mark.parametrize("change", TOO_MANY, ids=lambda change: change.__name__)
def test_more_than_a_bundle_may_have_is_refused_in_a_few_times_what_reading_the_json_takes(manifest, change):
    change(manifest)
    data = json.dumps(manifest).encode()
    reading_s = thread_seconds(lambda: json.loads(data))

    def refuse():
        with pytest.raises(ManifestError, match=r"are allowed|more than"):
            decode_manifest(data)

    assert thread_seconds(refuse) < TIMES_AS_LONG_AS_READING * reading_s + 0.1


def thread_seconds(call):
    start = time.thread_time()
    call()
    return time.thread_time() - start

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, RuntimeFailedError
from device_sdk.runtimes import OnnxRuntime
from server.inference.models import ModelCache

INPUT = np.zeros((1, 3, 20, 20), np.float32)


class Loading:
    """A runtime that counts, waits for ``gate`` and fails ``failures`` times."""

    identity = "loading"

    def __init__(self, failures=0):
        self.runtime = OnnxRuntime(threads=1)
        self.loads = 0
        self.failures = failures
        self.gate = threading.Event()
        self.gate.set()

    def load(self, stretch):
        self.loads += 1
        assert self.gate.wait(10)
        if self.loads <= self.failures:
            raise RuntimeFailedError("not now")
        return self.runtime.load(stretch)


def load(cache, bundle):
    return cache.load(bundle, bundle.supernet.original.edges)


@pytest.fixture
def bundles(tiny, tmp_path):
    return [Bundle.open(tiny.copy_to(tmp_path / str(version), version=version)) for version in range(3)]


def test_the_original_path_is_loaded_once(bundles):
    runtime = Loading()
    cache = ModelCache(runtime, limit=2)
    first = load(cache, bundles[0])
    assert load(cache, bundles[0]) is first
    assert first.run([INPUT])[0].shape == (1, 3)
    assert runtime.loads == 1


def test_who_asks_while_a_model_is_loaded_waits_for_it(bundles):
    runtime = Loading()
    runtime.gate.clear()
    cache, found = ModelCache(runtime, limit=2), []
    threads = [threading.Thread(target=lambda: found.append(load(cache, bundles[0]))) for _ in range(5)]
    for thread in threads:
        thread.start()
    runtime.gate.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 5
    assert len(set(map(id, found))) == 1
    assert runtime.loads == 1


def test_the_least_used_model_is_dropped_and_freed_with_its_last_user(bundles):
    runtime = Loading()
    cache = ModelCache(runtime, limit=2)
    first, second = load(cache, bundles[0]), weakref.ref(load(cache, bundles[1]))
    load(cache, bundles[0])
    load(cache, bundles[2])
    gc.collect()
    assert second() is None
    assert load(cache, bundles[0]) is first
    load(cache, bundles[1])
    load(cache, bundles[2])
    assert first.run([INPUT])[0].shape == (1, 3)  # dropped, but still in use here
    assert runtime.loads == 5


def test_a_model_that_failed_to_load_is_tried_again(bundles):
    runtime = Loading(failures=1)
    cache = ModelCache(runtime, limit=2)
    with pytest.raises(RuntimeFailedError):
        load(cache, bundles[0])
    assert load(cache, bundles[0]).run([INPUT])[0].shape == (1, 3)


def test_an_altered_blob_is_never_run(bundles):
    bundle = bundles[0]
    blob = bundle.blobs / bundle.supernet.rendition(bundle.supernet.original.edges[0]).blob
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    runtime = Loading()
    with pytest.raises(BlobError):
        load(ModelCache(runtime, limit=2), bundle)
    assert runtime.loads == 0


def test_paths_and_tails_of_one_bundle_are_kept_apart(bundles):
    cache = ModelCache(Loading(), limit=4)
    edges = bundles[0].supernet.original.edges
    whole, tail = cache.load(bundles[0], edges), cache.load(bundles[0], edges[3:])
    assert whole is not tail
    assert cache.load(bundles[0], edges[3:]) is tail
    assert tail.run([np.zeros((1, 16, 20, 20), np.float32)])[0].shape == (1, 3)


def test_a_model_for_one_core_is_loaded_when_batches_first_run_beside_each_other(bundles):
    everything, one_core = Loading(), Loading()
    model = load(ModelCache(everything, limit=2, beside=one_core), bundles[0])
    alone = model.run([INPUT])[0]
    assert (everything.loads, one_core.loads) == (1, 0)
    beside = [model.run_beside([INPUT])[0] for _ in range(2)]
    assert (everything.loads, one_core.loads) == (1, 1)
    np.testing.assert_allclose(beside[1], alone, rtol=1e-4, atol=1e-5)


def test_without_a_runtime_for_one_core_there_is_one_model(bundles):
    runtime = Loading()
    model = load(ModelCache(runtime, limit=2), bundles[0])
    np.testing.assert_array_equal(model.run_beside([INPUT])[0], model.run([INPUT])[0])
    assert runtime.loads == 1


def test_a_model_for_one_core_that_failed_to_load_is_tried_again(bundles):
    model = load(ModelCache(Loading(), limit=2, beside=Loading(failures=1)), bundles[0])
    with pytest.raises(RuntimeFailedError):
        model.run_beside([INPUT])
    assert model.run_beside([INPUT])[0].shape == (1, 3)

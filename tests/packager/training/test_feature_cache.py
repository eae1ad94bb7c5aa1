from __future__ import annotations

from pathlib import Path

import pytest
import torch

from device_sdk.errors import StorageError
from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.supernet.expansion import expand
from packager.training.caches import FeatureCache

SHAPES = {2: (4, 3, 2, 2), 5: (4, 10)}


@pytest.fixture
def tensors(noise) -> dict[int, torch.Tensor]:
    return {position: noise(*shape) for position, shape in SHAPES.items()}


def test_what_is_put_comes_back_as_put_returned_it(tmp_path, tensors):
    cache = FeatureCache(tmp_path, batches=3, shapes=SHAPES)
    given = cache.put(2, tensors | {0: torch.zeros(1)})  # what has no file is not kept
    found = cache.get(2)
    assert found is not None
    assert found.keys() == given.keys() == SHAPES.keys()
    for position, value in found.items():
        assert torch.equal(value, given[position])
        assert torch.allclose(value, tensors[position], rtol=1e-3, atol=1e-4)
    assert cache.get(0) is None


def test_numbers_that_are_too_large_are_not_kept_and_not_changed(tmp_path, tensors):
    cache = FeatureCache(tmp_path, batches=1, shapes=SHAPES)
    tensors[5][0, 0] = 1e6
    given = cache.put(0, tensors)
    assert all(torch.equal(given[position], tensors[position]) for position in SHAPES)
    assert cache.get(0) is None


def test_its_place_on_the_disk_is_taken_at_once_and_given_back(tmp_path):
    cache = FeatureCache(tmp_path, batches=100, shapes=SHAPES)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    expected = FeatureCache.size_bytes(batches=100, shapes=SHAPES)
    assert expected == 2 * 100 * (4 * 12 + 40) == sum(path.stat().st_size for path in files)
    assert sum(path.stat().st_blocks * 512 for path in files) >= expected
    cache.close()
    assert list(tmp_path.iterdir()) == []
    assert cache.get(0) is None


def test_a_cache_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path):
    with pytest.raises(StorageError):
        FeatureCache(tmp_path, batches=2**40, shapes=SHAPES)
    assert list(tmp_path.iterdir()) == []


def test_exits_train_from_the_cache_as_from_what_is_computed_again(
    tiny_traced, digits, digits_preprocessing, run_training, tmp_path
):
    def trained(cache_mb: float) -> tuple[list[torch.Tensor], list[Path]]:
        expansion = attach_exits(expand(tiny_traced, max_span=1), count=1)
        source = BatchSource(digits("train", limit=256), digits_preprocessing, batch=64, seed=5, variants=1)
        assert source.distinct_batches == 4  # which come round three times
        run_training(expansion, source, work=f"{cache_mb}", steps=14, variants=1, batch=64, cache_mb=cache_mb)
        left = list((tmp_path / f"{cache_mb}").glob("features*"))
        return list(expansion.exits[0].module.parameters()), left  # one linear layer

    (cached, left), (again, _) = trained(10.0), trained(0.0)
    assert left == []
    assert all(torch.allclose(a, b, atol=0.01) for a, b in zip(cached, again, strict=True))
    assert not all(map(torch.equal, cached, again))  # or the cache was not used: it rounds


def test_an_interrupted_training_from_the_cache_ends_bit_identical(tiny_traced, dying_source, run_training):
    def expansion():
        return attach_exits(expand(tiny_traced, max_span=1), count=1)

    choices = {"steps": 14, "variants": 1, "batch": 64, "cache_mb": 10.0}
    whole, resumed = expansion(), expansion()
    run_training(whole, dying_source, work="whole", **choices)
    dying_source.dies_at = 9
    with pytest.raises(dying_source.Killed):
        run_training(expansion(), dying_source, work="killed", **choices)
    dying_source.dies_at = None
    run_training(resumed, dying_source, work="killed", **choices)  # with an empty cache
    for a, b in zip(whole.exits, resumed.exits, strict=True):
        assert all(map(torch.equal, a.module.state_dict().values(), b.module.state_dict().values()))

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.search.evaluation.prefix_tree import FeatureCache
from device_sdk.supernet.plan import Edge


def feature(nbytes):
    return [np.zeros(nbytes, dtype=np.uint8)]


def key(name, batch=0):
    return batch, (Edge(name),)


@pytest.fixture
def cache():
    return FeatureCache(100)


def test_what_was_kept_is_found_again_by_batch_and_prefix(cache):
    features = feature(10)
    assert cache.keep(key("a"), features, worth=1.0)
    assert cache.get(key("a")) is features
    assert cache.get(key("a", batch=1)) is None


def test_what_is_worth_least_goes_first(cache):
    for name, worth in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        assert cache.keep(key(name), feature(30), worth=worth)
    assert cache.keep(key("d"), feature(30), worth=2.5)
    assert [name for name in "abcd" if cache.get(key(name))] == ["a", "c", "d"]


def test_what_is_worth_less_than_all_others_is_refused(cache):
    assert cache.keep(key("a"), feature(60), worth=2.0)
    assert not cache.keep(key("b"), feature(60), worth=1.0)
    assert cache.get(key("a")) is not None


def test_pinned_features_stay_and_push_others_out(cache):
    assert cache.keep(key("a"), feature(60), worth=9.0)
    assert cache.keep(key("b"), feature(60), worth=0.0, pin=True)
    assert not cache.keep(key("c"), feature(60), worth=10.0)
    assert not cache.keep(key("c"), feature(60), worth=10.0, pin=True)
    assert [name for name in "abc" if cache.get(key(name))] == ["b"]


def test_once_unpinned_only_what_is_worth_something_stays(cache):
    for name, worth in (("a", 1.0), ("b", 0.0)):
        cache.keep(key(name), feature(10), worth=worth, pin=True)
        cache.unpin(key(name))
    assert cache.get(key("a")) is not None
    assert cache.get(key("b")) is None


def test_a_new_valuation_decides_what_goes(cache):
    for name in "abc":
        cache.keep(key(name), feature(30), worth=1.0)
    cache.revalue(lambda prefix: {"a": 0.0, "b": 1.0, "c": 2.0}[prefix[0].block])
    assert cache.get(key("a")) is None
    cache.keep(key("d"), feature(60), worth=1.5)
    assert [name for name in "bcd" if cache.get(key(name))] == ["c", "d"]


def test_nothing_larger_than_the_cap_comes_in(cache):
    assert not cache.keep(key("a"), feature(101), worth=1.0, pin=True)
    assert cache.keep(key("a"), feature(100), worth=1.0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "pin", "unpin", "revalue"]), st.integers(0, 7), st.integers(0, 60), st.integers(0, 3)
    ),
    max_size=60,
)


@given(actions=ACTIONS, cap_bytes=st.integers(0, 150))
def test_kept_bytes_are_those_of_the_arrays_and_never_above_the_cap(actions, cap_bytes):
    cache, pinned = FeatureCache(cap_bytes), set()
    for action, number, nbytes, worth in actions:
        name = key(str(number))
        if action == "unpin" and name in pinned:
            pinned.remove(name)
            cache.unpin(name)
        elif action == "revalue":
            cache.revalue(lambda prefix, step=worth: float(int(prefix[0].block) % (step + 1)))
        elif action in ("keep", "pin"):
            kept = cache.keep(name, feature(nbytes), worth=float(worth), pin=action == "pin")
            pinned |= {name} if kept and action == "pin" else set()
        found = [cache.get(key(str(number))) for number in range(8)]
        assert sum(one[0].nbytes for one in found if one is not None) == cache.kept_bytes <= cap_bytes
        assert len(cache) == sum(one is not None for one in found)
        assert all(cache.get(name) is not None for name in pinned)
    assert cache.peak_bytes <= cap_bytes

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.search.evaluation.prefix_tree import prefix_worth
from device_sdk.supernet.plan import Edge, Subnet


def subnet(names):
    return Subnet(tuple(map(Edge, names)))


def worth_of(children, *, latency=None, nbytes=None, room_bytes=10**9):
    return prefix_worth(
        {subnet(names): count for names, count in children.items()},
        edge_latency_ms=lambda edge: (latency or {}).get(edge.block, 1.0),
        feature_bytes=lambda edge: (nbytes or {}).get(edge.block, 10),
        room_bytes=room_bytes,
    )


def names(kept):
    return {"".join(edge.block for edge in prefix) for prefix in kept}


def test_the_middle_of_a_lone_parent_saves_most():
    # a prefix of k edges saves k and is needed with a probability that falls with k
    assert names(worth_of({"abcdefgh": 1.0}, room_bytes=10)) == {"abcd"}


def test_small_features_are_preferred_where_they_save_as_much():
    nbytes = dict.fromkeys("abcd", 40) | dict.fromkeys("efgh", 10)
    assert names(worth_of({"abcdefgh": 1.0}, nbytes=nbytes, room_bytes=40)) <= {"abcde", "abcdef", "abcdefg"}


def test_slow_edges_are_kept_before_quick_ones():
    kept = worth_of({"abcd": 1.0, "xyzw": 1.0}, latency=dict.fromkeys("xyzw", 5.0), room_bytes=10)
    assert names(kept) == {"xy"}


def test_parents_with_more_children_are_served_first():
    assert names(worth_of({"abcd": 0.1, "xyzw": 2.0}, room_bytes=10)) == {"xy"}


def test_neighbours_of_what_is_kept_are_worth_less():
    kept = worth_of({"abcdefghijkl": 1.0}, room_bytes=20)
    lengths = sorted(len(prefix) for prefix in kept)
    assert lengths[1] - lengths[0] > 1  # not two that save nearly the same


def test_whole_subnets_are_never_kept():
    assert worth_of({"a": 5.0}) == {}
    assert names(worth_of({"ab": 5.0})) == {"a"}


@given(
    parents=st.dictionaries(st.text("abcd", min_size=1, max_size=8), st.floats(0, 50), max_size=8),
    room_bytes=st.integers(0, 100),
)
def test_what_is_kept_fits_into_the_room_and_is_worth_something(parents, room_bytes):
    kept = worth_of(parents, room_bytes=room_bytes)
    assert 10 * len(kept) <= room_bytes
    assert all(worth > 0 for worth in kept.values())
    prefixes = {parent[:length] for parent in parents for length in range(1, len(parent))}
    assert names(kept) <= prefixes


def test_no_parents_need_nothing():
    assert worth_of({}) == {}


@pytest.mark.parametrize("count", [0.0, 1e-320])
def test_parents_without_children_need_nothing(count):
    assert all(worth < 1e-300 for worth in worth_of({"abc": count}).values())

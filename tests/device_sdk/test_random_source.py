from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.random_source import SplitMix64, uniform_floats


def test_known_answers_of_splitmix64():
    random = SplitMix64(1234567)
    assert [random.next() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(seed=st.integers(), bound=st.integers(1, 2**200))
def test_below_stays_below_any_bound(seed, bound):
    random = SplitMix64(seed)
    assert all(0 <= random.below(bound) < bound for _ in range(5))


@pytest.mark.parametrize("bound", [0, -3])
def test_below_refuses_a_bound_that_leaves_nothing(bound):
    with pytest.raises(ValueError, match="bound must be positive"):
        SplitMix64(0).below(bound)


def test_below_uses_whole_words_most_significant_first():
    words = SplitMix64(5)
    expected = ((words.next() << 64) | words.next()) & ((1 << 100) - 1)
    assert SplitMix64(5).below(1 << 100) == expected


def test_below_is_about_uniform():
    random = SplitMix64(3)
    counts = Counter(random.below(7) for _ in range(7000))
    assert sorted(counts) == list(range(7))
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 22.5  # 0.1 %, 6 degrees of freedom


@given(seed=st.integers(0, 2**64 - 1), count=st.integers(0, 50))
def test_uniform_floats_are_the_top_24_bits_of_each_word(seed, count):
    random = SplitMix64(seed)
    expected = np.array([(random.next() >> 40) * 2.0**-24 for _ in range(count)], dtype=np.float32)
    drawn = uniform_floats(seed, count)
    assert drawn.dtype == np.float32
    assert np.array_equal(drawn, expected)


@given(seed=st.integers())
def test_uniform_lies_in_the_unit_interval(seed):
    assert 0 <= SplitMix64(seed).uniform() < 1


@given(seed=st.integers(), items=st.lists(st.integers()))
def test_shuffled_keeps_the_items_and_leaves_the_argument_alone(seed, items):
    before = list(items)
    assert sorted(SplitMix64(seed).shuffled(items)) == sorted(items)
    assert items == before


def test_shuffled_reaches_every_order_about_equally_often():
    random = SplitMix64(11)
    counts = Counter(tuple(random.shuffled("abc")) for _ in range(6000))
    assert set(counts) == set(permutations("abc"))
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 20.5  # 0.1 %, 5 degrees of freedom


def test_choice_reaches_every_item():
    random = SplitMix64(1)
    assert {random.choice("abcd") for _ in range(200)} == set("abcd")

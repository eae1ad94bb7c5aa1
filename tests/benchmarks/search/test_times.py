from __future__ import annotations

import math

import pytest

from benchmarks.search.bench import LIMIT_S
from benchmarks.search.times import Times, ratio, ratio_high, time_ratios


def test_a_rival_that_never_gets_there_counts_with_the_limit_that_it_had():
    ours, theirs = Times((10.0, 10.0, 10.0), 40.0), Times((None, None, 20.0), 40.0)
    assert ratio(ours, theirs) == pytest.approx(10 / 40)
    assert theirs.reached == 1


def test_a_run_of_ours_that_never_gets_there_cannot_count_as_quick():
    ours, theirs = Times((None, None, 5.0), 40.0), Times((None, None, None), 40.0)
    assert ratio(ours, theirs) == math.inf
    assert ratio_high(Times((None, 5.0, 5.0), 40.0), theirs) == math.inf


def test_the_bound_is_above_the_ratio_where_seeds_differ():
    ours, theirs = Times((5.0, 10.0, 30.0), 40.0), Times((20.0, 25.0, 30.0), 40.0)
    assert ratio(ours, theirs) < ratio_high(ours, theirs) <= 30 / 20
    same = Times((5.0, 5.0, 5.0), 40.0)
    assert ratio_high(same, same) == 1.0


def test_the_best_rival_is_the_one_that_is_nearest():
    quick, slow = Times((8.0,) * 3, LIMIT_S), Times((32.0,) * 3, LIMIT_S)
    found = time_ratios({"pathweave": Times((4.0,) * 3, LIMIT_S), "adaptivenet": slow, "random": quick})
    assert found["time_vs_adaptivenet"] == pytest.approx(4 / 32)
    assert found["time_vs_best_rival_high"] == pytest.approx(4 / 8)

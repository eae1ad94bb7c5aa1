from __future__ import annotations

import pytest

from benchmarks.cascade.judging import _weighed


def test_the_mean_weighs_hard_samples_by_their_share_among_all():
    timed = [(1.0, False), (1.2, False), (5.0, True)]
    assert _weighed(timed, 0.1) == pytest.approx(0.9 * 1.1 + 0.1 * 5.0)


def test_of_a_plan_whose_samples_all_take_one_way_it_is_the_plain_mean():
    assert _weighed([(1.0, False), (3.0, False)], 0.0) == 2.0

"""Bottlenecks go where the table of uplinks and devices says that they save latency."""

from __future__ import annotations

import numpy as np

from packager.bottlenecks.placing import Crossing, Table, most_gaining

TABLE, MACS = Table(), 400_000_000
INPUT_BYTES = 16_000
PLAIN = [Crossing(0.3, 80_000), Crossing(0.6, 40_000)]


def test_a_crossing_saves_only_where_its_bytes_are_fewer_than_the_share_that_is_left():
    than = TABLE.baseline_ms(PLAIN, INPUT_BYTES, MACS)
    assert TABLE.gains(Crossing(0.3, 2_000), than, MACS)[0].max() > 0.2
    assert not TABLE.gains(Crossing(0.8, 10_000), than, MACS)[0].any(), "0.8 + 10 / 16 > 1: one of the ends is faster"


def test_without_inputs_more_is_saved():
    than = TABLE.baseline_ms(PLAIN, INPUT_BYTES, MACS)
    saved = TABLE.gains(Crossing(0.3, 2_000), than, MACS)
    assert saved.shape == (2, len(TABLE.uplinks_mbps), len(TABLE.device_factors))
    assert (saved[1] >= saved[0]).all()


def test_the_second_pays_where_the_first_does_not():
    than = TABLE.baseline_ms(PLAIN, INPUT_BYTES, MACS)
    early, same, late = Crossing(0.1, 6_000), Crossing(0.1, 6_100), Crossing(0.6, 500)
    gains = [TABLE.gains(one, than, MACS) for one in (early, same, late)]
    assert set(most_gaining(gains, count=2)) == {0, 2}


def test_nothing_is_chosen_where_nothing_is_saved():
    assert most_gaining([np.zeros((2, 4, 6))], count=2) == ()
    assert most_gaining([], count=2) == ()

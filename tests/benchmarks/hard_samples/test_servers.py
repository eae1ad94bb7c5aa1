from __future__ import annotations

import numpy as np

from benchmarks.hard_samples.judging import Pair
from benchmarks.hard_samples.servers import KNOWN, beaten, fitted_for, server_rows, specialist


def test_a_specialist_answers_with_what_it_knows_and_our_decider_asks_it_for_that():
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 1200)
    small = random.normal(size=(1200, 10)).astype(np.float32)
    small[np.arange(1200), labels] += 2.0
    large = specialist(9 * np.eye(10, dtype=np.float32)[labels])
    assert (large.argmax(axis=1) < KNOWN).all()
    there = large.argmax(axis=1) == labels
    fitted = fitted_for(small, small[None], there, labels)
    pair = Pair(small.argmax(axis=1) == labels, there)
    figures, rows = server_rows("specialist", fitted, small, pair, pair.here)
    assert figures["specialist_minus_entropy_low_70"] > 3
    assert figures["specialist_minus_large_low_90"] > 0
    assert beaten(figures, "specialist") == 3
    assert [row["what"] for row in rows] == ["specialist alone", "specialist: ours", "specialist: entropy"]

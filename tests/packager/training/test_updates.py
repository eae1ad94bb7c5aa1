from __future__ import annotations

import pytest

from packager.training.schedule import USUAL, WANTED, fitting_updates

CHOICES = {"highest_rate": 1e-2, "largest_batch": 128, "adaptive": False}


@pytest.mark.parametrize(
    ("updates_of_128", "batch"), [(10_000, 128), (WANTED, 128), (WANTED - 1, 64), (WANTED // 4, 32), (2, 8), (0.1, 8)]
)
def test_the_batch_is_the_largest_that_leaves_enough_updates(updates_of_128, batch):
    fitting = fitting_updates(**CHOICES, seconds_per_sample=0.01, seconds=updates_of_128 * 1.28)
    assert fitting.batch == batch


def test_thousands_of_large_batches_keep_the_rate():
    fitting = fitting_updates(**CHOICES, seconds_per_sample=0.01, seconds=5000 * 1.28)
    assert (fitting.batch, fitting.rate) == (128, pytest.approx(1e-2))


@pytest.mark.parametrize("adaptive", [False, True])
def test_small_batches_and_few_updates_lower_the_rate(adaptive):
    seconds = USUAL * 0.16  # for so many updates of 16 samples
    choices = CHOICES | {"largest_batch": 16, "adaptive": adaptive, "seconds_per_sample": 0.01}
    usual, few = (fitting_updates(**choices, seconds=part) for part in (seconds, seconds / 4))
    assert usual.rate == pytest.approx(1e-2 * (16 / 128) ** (0.5 if adaptive else 1.0))
    assert few.rate == pytest.approx(usual.rate / (2 if few.batch == 16 else 2 * 2 ** (0.5 if adaptive else 1)))


def test_counted_updates_keep_the_batch_and_need_no_clock():
    fitting = fitting_updates(**CHOICES, updates=USUAL // 100)
    assert (fitting.batch, fitting.rate) == (128, pytest.approx(1e-3))


def test_a_batch_below_the_least_stays_as_it_is():
    assert fitting_updates(**CHOICES | {"largest_batch": 4}, seconds_per_sample=1.0, seconds=1.0).batch == 4

from __future__ import annotations

from packager.fitting.fit import Choice, of_no_use, off_front

ORIGINALS = [Choice(f"o{k}", k, k + 1, 100, 0.0, original=True) for k in range(4)]


def skip(start: int, error: float) -> Choice:
    return Choice(f"i{start}", start, start + 1, 0, error)


def test_a_block_far_from_the_front_is_left_out_and_the_reason_says_how_far():
    choices = [*ORIGINALS, skip(1, 0.1), skip(2, 0.1), Choice("m", 1, 3, 100, 0.5)]  # as cheap as one skip, worse
    assert of_no_use(choices, judged=["m"], margin=0.02, worst=1.0) == {"m": "0.5 against 0.1"}


def test_a_block_stays_where_it_improves_some_budget():
    choices = [*ORIGINALS, skip(1, 0.1), skip(2, 0.9), Choice("m", 1, 3, 0, 0.5)]  # cheaper than both skips
    assert of_no_use(choices, judged=["m"], margin=0.02, worst=1.0) == {}


def test_of_two_that_do_the_same_one_stays():
    choices = [*ORIGINALS, Choice("a", 1, 2, 50, 0.1), Choice("b", 1, 2, 50, 0.1)]
    assert list(of_no_use(choices, judged=["a", "b"], margin=0.02, worst=1.0)) == ["a"]


def test_a_block_after_which_nothing_is_right_is_left_out_though_it_is_the_cheapest():
    choices = [*ORIGINALS, Choice("m", 1, 3, 0, 5.0)]
    assert list(of_no_use(choices, judged=["m"], margin=0.02, worst=1.0)) == ["m"]
    assert list(off_front(choices, judged=["m"], slack=0.25, worst=1.0)) == ["m"]


def test_near_the_front_is_near_enough_for_a_skip():
    choices = [*ORIGINALS, skip(1, 0.1), skip(2, 0.12), skip(3, 0.4)]
    assert list(off_front(choices, judged=["i1", "i2", "i3"], slack=0.25, worst=1.0)) == []
    choices = [*ORIGINALS, skip(1, 0.1), Choice("far", 2, 3, 0, 2.0)]
    assert list(off_front(choices, judged=["i1", "far"], slack=0.25, worst=1.0)) == ["far"]

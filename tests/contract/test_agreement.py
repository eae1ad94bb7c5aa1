from __future__ import annotations

import pytest

from tests.contract.agreement import differences

FROZEN = {"shares": [0.1, 2.0], "counts": {"a": 1}, "plan": "o0 o1", "best": None, "fits": True}


def test_the_last_digits_of_floats_may_differ():
    again = FROZEN | {"shares": [0.1 + 1e-16, 2.0000000001]}
    assert not list(differences(FROZEN, again, relative=1e-9))


@pytest.mark.parametrize(
    "change",
    [
        {"shares": [0.1, 2.00000001]},
        {"shares": [0.1]},
        {"shares": [0.1, 2]},
        {"shares": [0.1, None]},
        {"counts": {"b": 1}},
        {"counts": {"a": 1.0}},
        {"counts": {"a": True}},
        {"plan": "o0 o2"},
        {"best": 0.0},
        {"fits": 1},
    ],
    ids=str,
)
def test_everything_else_is_a_difference_that_is_told_with_its_place(change):
    [found] = differences(FROZEN, FROZEN | change, relative=1e-9)
    assert found.startswith(f"/{next(iter(change))}")


def test_the_order_of_keys_is_a_difference():
    assert list(differences({"a": 1, "b": 2}, {"b": 2, "a": 1}, relative=1e-9))

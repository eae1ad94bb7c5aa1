from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.policies.splitting.head_renditions import allocation

OPTIONS = st.lists(
    st.tuples(st.integers(0, 60), st.floats(0, 9)), min_size=1, max_size=3, unique_by=lambda option: option[0]
)


@given(options=st.lists(OPTIONS, min_size=1, max_size=4), budget=st.integers(0, 250))
@settings(max_examples=150, deadline=None)
def test_the_budget_is_kept_whenever_that_is_possible_and_no_single_place_everywhere_loses_less(options, budget):
    found = allocation(options, budget_bytes=budget)
    every = [
        chosen
        for chosen in product(*(range(len(own)) for own in options))
        if sum(own[place][0] for own, place in zip(options, chosen, strict=True)) <= budget
    ]
    if not every:
        assert found is None
        return
    assert found in every

    def lost(chosen):
        return sum(own[place][1] for own, place in zip(options, chosen, strict=True))

    same = [chosen for chosen in every if len(set(chosen)) == 1]
    assert lost(found) <= min(map(lost, same), default=float("inf")) + 1e-9


def test_what_loses_least_per_byte_gives_first():
    sensitive, robust = [(3, 9.0), (10, 0.0)], [(3, 0.1), (10, 0.0)]
    assert allocation([sensitive, robust], budget_bytes=13) == (1, 0)

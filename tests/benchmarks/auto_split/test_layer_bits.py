from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.auto_split.layer_bits import activation_allocation, bit_allocation
from benchmarks.auto_split.layer_graph import packed_size

WIDTHS = (2, 4, 8)
ERRORS = st.fixed_dictionaries({2: st.floats(1, 9), 4: st.floats(0.2, 1), 8: st.floats(0, 0.2)})
ITEMS = st.lists(st.tuples(st.integers(0, 50), ERRORS), min_size=1, max_size=4)


def used(sizes, bits):
    return sum(map(packed_size, sizes, bits))


@given(items=ITEMS, budget=st.integers(0, 250))
@settings(max_examples=150, deadline=None)
def test_weights_keep_the_budget_and_lose_no_more_than_the_best_of_one_step_less(items, budget):
    sizes, errors = [size for size, _ in items], [error for _, error in items]
    found = bit_allocation(sizes, errors, WIDTHS, budget_bytes=budget)
    options = [WIDTHS if size else (0,) for size in sizes]
    every = [bits for bits in product(*options) if used(sizes, bits) <= budget]
    if not every:
        assert found is None
        return
    assert found is not None
    assert used(sizes, found) <= budget

    def lost(bits):
        return sum(error.get(width, 0.0) for error, width in zip(errors, bits, strict=True))

    step = max(packed_size(size, 8) - packed_size(size, 2) for size in sizes)
    smaller = [lost(bits) for bits in every if used(sizes, bits) <= budget - step]
    assert lost(found) <= min(smaller, default=float("inf")) + 1e-9
    assert lost(found) >= min(map(lost, every)) - 1e-9


@given(data=st.data(), budget=st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_activations_keep_every_working_set_whenever_that_is_possible(data, budget, graphs):
    graph = data.draw(graphs(4))
    errors = [data.draw(ERRORS) for _ in range(graph.count + 1)]
    found = activation_allocation(graph, graph.count, errors, WIDTHS, budget_bytes=budget)

    def largest(bits):
        bits = (graph.input_bits, *bits)
        return max(graph.working_bytes(index, bits) for index in range(1, graph.count + 1))

    if found is None:
        assert largest((2,) * graph.count) > budget
    else:
        assert largest(found) <= budget


def test_the_item_that_loses_least_per_byte_gives_first():
    sensitive, robust = {2: 9.0, 8: 0.0}, {2: 0.1, 8: 0.0}
    assert bit_allocation([10, 10], [sensitive, robust], (2, 8), budget_bytes=13) == (8, 2)


def test_a_large_budget_takes_nothing_away():
    assert bit_allocation([10, 0, 3], [{2: 1.0}] * 3, (2, 8), budget_bytes=1e9) == (8, 0, 8)

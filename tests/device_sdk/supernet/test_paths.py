from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import UsageError
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.paths import (
    WindowSampler,
    architecture_count,
    enumerate_subnets,
    k_cheapest,
    sample_uniformly,
    subnet_count,
)
from device_sdk.supernet.supernet import Supernet


def total(model, subnet):
    return sum(model.edge_latency_ms(edge) for edge in subnet.edges)


def assert_uniform(drawn, population):
    """Chi-square: beyond four standard deviations of its degrees of freedom is no chance."""
    counts = Counter(drawn)
    assert set(counts) == set(population)
    expected = len(drawn) / len(population)
    statistic = sum((counts[subnet] - expected) ** 2 / expected for subnet in population)
    freedom = len(population) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(("length", "count"), [(16, 10_609), (27, 8_646_064)])
def test_spans_of_one_to_three_are_counted_by_tribonacci_numbers(elastic_supernet, length, count):
    supernet = elastic_supernet(length)
    assert architecture_count(supernet) == count
    assert subnet_count(supernet) == count


def test_counts_are_exact_beyond_machine_integers(elastic_supernet):
    a, b, c = 1, 1, 2
    for _ in range(400 - 2):
        a, b, c = b, c, a + b + c
    assert architecture_count(elastic_supernet(400)) == c > 2**64


@given(data=st.data())
def test_counts_and_enumeration_equal_brute_force(supernets, all_subnets, data):
    supernet = data.draw(supernets)
    expected = all_subnets(supernet)
    listed = list(enumerate_subnets(supernet, limit=len(expected)))
    assert sorted(listed) == sorted(expected)
    assert subnet_count(supernet) == len(expected)
    assert architecture_count(supernet) == len({subnet.block_ids for subnet in expected})


def test_enumeration_refuses_more_than_its_limit_at_once(elastic_supernet):
    with pytest.raises(UsageError, match="8646064 subnets, more than the limit of 1000"):
        enumerate_subnets(elastic_supernet(27), limit=1000)


@given(data=st.data(), k=st.integers(1, 40))
def test_k_cheapest_equals_the_sorted_enumeration(priced_supernets, all_subnets, data, k):
    supernet, model = data.draw(priced_supernets)
    found = k_cheapest(supernet, model.edge_latency_ms, k=k)
    expected = sorted(total(model, subnet) for subnet in all_subnets(supernet))[:k]
    assert [weight for weight, _ in found] == expected
    assert [total(model, subnet) for _, subnet in found] == expected
    assert len({subnet for _, subnet in found}) == len(found)


@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_window_samples_lie_in_the_window_and_miss_it_only_if_it_is_empty(priced_supernets, all_subnets, data, seed):
    supernet, model = data.draw(priced_supernets)
    weights = sorted({total(model, subnet) for subnet in all_subnets(supernet)})
    low = data.draw(st.sampled_from(weights)) + data.draw(st.sampled_from([-0.5, -0.001, 0.0, 0.001]))
    high = low + data.draw(st.sampled_from([0.0, 0.002, 0.25, 3.0]))
    sampler = WindowSampler(supernet, model.edge_latency_ms, low=low, high=high)
    drawn = sampler.sample(count=3, random=SplitMix64(seed))
    assert all(low <= total(model, subnet) <= high for subnet in drawn)
    assert len(drawn) == (3 if any(low <= weight <= high for weight in weights) else 0)


@pytest.mark.parametrize("window", [(0.0, 100.0), (5.5, 6.5), (5.5, 5.5)])
def test_window_samples_are_uniform_and_cover_the_window(elastic_supernet, uniform_costs, all_subnets, window):
    supernet = elastic_supernet(7)
    model = uniform_costs(supernet)
    low, high = window
    inside = [subnet for subnet in all_subnets(supernet) if low <= total(model, subnet) <= high]
    sampler = WindowSampler(supernet, model.edge_latency_ms, low=low, high=high)
    assert_uniform(sampler.sample(count=100 * len(inside), random=SplitMix64(8)), inside)


def test_window_samples_are_uniform_where_rounding_to_the_grid_would_cheat(build_supernet, uniform_costs):
    supernet = build_supernet(6, int8=[f"o{i}" for i in range(6)])
    weights = {edge: 1 + number * 1e-5 for number, edge in enumerate(supernet.edges)}
    everything = list(enumerate_subnets(supernet, limit=64))
    middle = sorted(sum(weights[edge] for edge in subnet.edges) for subnet in everything)
    low, high = middle[20] - 1e-9, middle[44] + 1e-9
    inside = [s for s in everything if low <= sum(weights[edge] for edge in s.edges) <= high]
    sampler = WindowSampler(supernet, weights.__getitem__, low=low, high=high)
    assert_uniform(sampler.sample(count=100 * len(inside), random=SplitMix64(2)), inside)


def test_sample_uniformly_draws_from_all_subnets(elastic_supernet, all_subnets):
    supernet = elastic_supernet(6)
    everything = all_subnets(supernet)
    drawn = sample_uniformly(supernet, count=100 * len(everything), random=SplitMix64(4))
    assert_uniform(drawn, everything)


def test_equal_seeds_draw_equal_samples(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    weight = uniform_costs(supernet).edge_latency_ms

    def draw(seed):
        return WindowSampler(supernet, weight, low=8, high=9).sample(count=20, random=SplitMix64(seed))

    assert draw(1) == draw(1) != draw(2)


def small_sizes(length):
    """A chain of ``length`` originals and merged pairs, of which every second runs at the sizes 1x1 and 4x4 too."""

    def block(name, start, end, *, any_size):
        rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0), any_size=any_size)
        kind = "original" if end == start + 1 else "merged"
        return Block(name, start, end, kind, parameters=0, macs=0, renditions=(rendition,))

    def shapes(side):
        return (*(((3, side, side),) for _ in range(length)), ((2,),))

    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", shape),)) for index, [shape] in enumerate(shapes(2))]
    blocks = [block(f"o{k}", k, k + 1, any_size=True) for k in range(length)]
    blocks += [block(f"m{k}", k, k + 2, any_size=k % 2 == 0) for k in range(length - 1)]
    sizes = [InputSize((side, side), shapes(side), Golden((), 0.0)) for side in (1, 4)]
    return Supernet(cuts, blocks, input_sizes=sizes)


def paths_by_size(supernet):
    """Every path at every size, by brute force over those at the model's own."""
    own = Supernet(supernet.cut_points, supernet.blocks)
    found = []
    for size in supernet.sizes:
        for subnet in enumerate_subnets(own, limit=1000):
            renditions = [own.rendition(edge) for edge in subnet.edges]
            if not size or all(one.any_size for one in renditions):
                found.append(subnet.at(size))
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_paths_over_sizes_are_those_of_each_size(length):
    supernet = small_sizes(length)
    expected = paths_by_size(supernet)
    listed = list(enumerate_subnets(supernet, limit=len(expected)))
    assert sorted(listed) == sorted(expected)
    assert subnet_count(supernet) == len(expected)
    assert architecture_count(supernet) == len({subnet.block_ids for subnet in expected})
    for subnet in listed:
        supernet.check(subnet)


def test_the_cheapest_over_sizes_are_the_sorted_enumeration():
    supernet = small_sizes(6)
    weights = {edge: (number * 7 % 11 + 1) / 8 for number, edge in enumerate(supernet.edges)}
    everything = paths_by_size(supernet)
    found = k_cheapest(supernet, weights.__getitem__, k=len(everything) + 1)
    assert [weight for weight, _ in found] == sorted(sum(map(weights.__getitem__, one.edges)) for one in everything)
    assert {subnet for _, subnet in found} == set(everything)


def test_samples_over_sizes_are_uniform_also_within_a_window():
    supernet = small_sizes(5)
    everything = paths_by_size(supernet)
    assert_uniform(sample_uniformly(supernet, count=100 * len(everything), random=SplitMix64(3)), everything)

    def weight(edge):
        return 1.0 + sum(edge.input_size) / 8

    inside = [one for one in everything if 4.0 <= sum(map(weight, one.edges)) <= 6.0]
    assert {one.input_size for one in inside} == {(), (1, 1), (4, 4)}
    drawn = WindowSampler(supernet, weight, low=4.0, high=6.0).sample(count=100 * len(inside), random=SplitMix64(4))
    assert_uniform(drawn, inside)

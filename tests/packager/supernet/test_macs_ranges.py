from __future__ import annotations

import copy

import pytest

from device_sdk.supernet.plan import Edge, Subnet
from packager.errors import TrainingError
from packager.supernet.expansion import expand
from packager.supernet.macs_ranges import MacsRanges


def test_the_original_path_is_never_trained_on(tiny_expansion):
    ranges, supernet = MacsRanges(tiny_expansion), tiny_expansion.supernet()
    drawn = {ranges.sample(seed) for seed in range(400)}
    assert supernet.original not in drawn
    for subnet in drawn:
        supernet.check(subnet)
    assert {edge.block for subnet in drawn for edge in subnet.edges} == {block.id for block in supernet.blocks}


def test_a_sampled_path_is_a_function_of_the_seed(tiny_expansion):
    first, second = MacsRanges(tiny_expansion), MacsRanges(copy.copy(tiny_expansion))
    assert [first.sample(seed) for seed in range(20)] == [second.sample(seed) for seed in reversed(range(20))][::-1]


def test_ranges_cover_all_costs_up_to_the_original_path(zoo_traced):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=3)
    macs = {block.id: block.macs for block in expansion.blocks}
    whole = sum(block.macs for block in expansion.originals)
    ranges = list(MacsRanges(expansion).samples(5, seed=0))
    assert len(ranges) == 6
    assert [high for _, high, _ in ranges[:-1]] == [low for low, _, _ in ranges[1:]]
    assert ranges[-1][1] == 1.0
    for low, high, subnets in ranges:
        assert 1 <= len(subnets) == len(set(subnets)) <= 5
        ratios = [sum(macs[name] for name in subnet.block_ids) / whole for subnet in subnets]
        assert all(low - 1e-6 <= ratio <= high + 1e-6 for ratio in ratios)


def test_paths_between_the_cheapest_and_the_original_mix_their_blocks(zoo_traced):
    ranges = MacsRanges(expand(zoo_traced("resnet20_cifar10"), max_span=3))
    supernet = expand(zoo_traced("resnet20_cifar10"), max_span=3).supernet()
    allowed = {*ranges.cheapest.edges, *supernet.original.edges}
    added = set(ranges.cheapest.edges) - set(supernet.original.edges)
    drawn = [ranges.between(seed) for seed in range(60)]
    kept = set()
    for subnet in drawn:
        supernet.check(subnet)
        assert set(subnet.edges) <= allowed
        kept.add(len(added & set(subnet.edges)))
    assert kept == set(range(1, len(added) + 1))
    assert drawn == [ranges.between(seed) for seed in range(60)]


def test_skips_change_neither_ranges_nor_the_cheapest_path(tiny_traced, tiny_expansion):
    plain, skipping = MacsRanges(tiny_expansion), MacsRanges(expand(tiny_traced, max_span=3, identity=True))
    assert skipping.cheapest == plain.cheapest
    assert list(skipping.samples(3, seed=0)) == list(plain.samples(3, seed=0))


def test_about_every_other_sampled_path_has_a_skip_and_all_have_something_to_learn(tiny_traced):
    expansion = expand(tiny_traced, max_span=3, identity=True)
    ranges, supernet = MacsRanges(expansion), expansion.supernet()
    drawn = [ranges.sample(seed) for seed in range(200)]
    learning = {block.id for block in expansion.trained}
    skips = [sum(name.startswith("i") for name in subnet.block_ids) for subnet in drawn]
    for subnet in drawn:
        supernet.check(subnet)
        assert learning & set(subnet.block_ids)
    assert set(skips) == {0, 1}
    assert 30 < sum(skips) < 120
    assert drawn == [ranges.sample(seed) for seed in range(200)]


def test_a_skip_replaces_what_lies_between_its_ends(tiny_traced):
    expansion = expand(tiny_traced, max_span=3, identity=True)
    ranges, original = MacsRanges(expansion), expansion.supernet().original
    assert str(ranges.with_skip(original, Edge("i2-3"))) == "o0 o1 i2-3 o3 o4 o5"
    merged = Subnet(tuple(Edge(name) for name in ("o0", "m1-3", "o3", "o4", "o5")))
    assert ranges.with_skip(merged, Edge("i2-3")) is None  # jumps over 2
    assert str(ranges.with_skip(merged, Edge("i4-5"))) == "o0 m1-3 o3 i4-5 o5"


def test_a_path_lies_in_the_range_that_it_was_drawn_from(zoo_traced):
    ranges = MacsRanges(expand(zoo_traced("resnet20_cifar10"), max_span=3))
    drawn = list(ranges.samples(2, seed=0))
    assert all(
        ranges.range_of(path) in (number, number + 1) for number, (_, _, paths) in enumerate(drawn) for path in paths
    )
    assert [ranges.range_of(paths[0]) for _, _, paths in drawn] == sorted(ranges.range_of(p[0]) for _, _, p in drawn)


def test_where_nothing_is_cheaper_sampling_ends(tiny_traced):
    with pytest.raises(TrainingError, match="no path with an added block"):
        MacsRanges(expand(tiny_traced, max_span=1)).sample(0)

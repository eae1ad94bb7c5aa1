from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.random_source import SplitMix64
from device_sdk.search.nearby import Neighbourhood, latency_range_ms, nearby_init, nearby_mutate, with_each_block
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Member, Rendition, TensorSpec
from device_sdk.supernet.cost import MB, Budget, CostModel, EdgeCost
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.supernet import Supernet

seeds = st.integers(0, 2**64 - 1)
budgets = st.builds(
    Budget,
    latency_ms=st.integers(1, 400).map(lambda eighths: eighths / 8),
    memory_mb=st.one_of(st.none(), st.integers(1, 120)),
)


def init(supernet, model, budget, *, count=8, ratio=0.1, seed=0):
    return nearby_init(supernet, model, budget, window_ratio=ratio, count=count, random=SplitMix64(seed))


@given(data=st.data(), seed=seeds, budget=budgets, count=st.integers(1, 40))
def test_init_gives_different_subnets_inside_the_window_and_the_memory_limit(
    priced_supernets, data, seed, budget, count
):
    supernet, model = data.draw(priced_supernets)
    subnets, nearby = init(supernet, model, budget, count=count, seed=seed)
    assert len(set(subnets)) == len(subnets) <= count
    for subnet in subnets:
        supernet.check(subnet)
        assert nearby.low_ms <= model.latency_ms(subnet) <= nearby.high_ms
        assert budget.fits_memory(model.peak_bytes(subnet))


@given(data=st.data(), seed=seeds, budget=budgets)
def test_init_widens_down_to_everything_if_the_window_holds_too_few(priced_supernets, all_subnets, data, seed, budget):
    supernet, model = data.draw(priced_supernets)
    everything = all_subnets(supernet)
    subnets, nearby = init(supernet, model, budget, count=len(everything) + 1, seed=seed)
    expected = {
        subnet
        for subnet in everything
        if model.latency_ms(subnet) <= nearby.high_ms and budget.fits_memory(model.peak_bytes(subnet))
    }
    assert set(subnets) == expected


def test_the_window_lies_around_the_budget(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    _, nearby = init(supernet, uniform_costs(supernet), Budget(latency_ms=9), ratio=0.1)
    assert (nearby.low_ms, nearby.high_ms) == pytest.approx((8.1, 9.9))


@pytest.mark.parametrize("budget", [Budget(latency_ms=1000), Budget(memory_mb=100)])
def test_a_budget_above_the_slowest_subnet_is_anchored_there(elastic_supernet, uniform_costs, budget):
    supernet = elastic_supernet(12)
    subnets, nearby = init(supernet, uniform_costs(supernet, offset_ms=0.5), budget, count=4)
    assert (nearby.low_ms, nearby.high_ms) == pytest.approx((12.5 * 0.9, 12.5 * 1.1))
    assert len(subnets) == 4


def test_supernets_too_large_to_list_are_sampled_in_the_same_window(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(27)
    model = uniform_costs(supernet, scale=0.5, offset_ms=2.0)
    subnets, nearby = init(supernet, model, Budget(latency_ms=12), count=50)
    assert (nearby.low_ms, nearby.high_ms) == pytest.approx((10.8, 13.2))
    assert len(set(subnets)) == 50
    assert all(subnet in nearby for subnet in subnets)


def test_a_memory_limit_that_random_draws_never_meet_ends_with_fewer(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(27)
    model = uniform_costs(supernet)  # 1 MB a block: only nine merged blocks in a row fit
    subnets, nearby = init(supernet, model, Budget(latency_ms=20, memory_mb=9.5), count=5)
    assert all(model.peak_bytes(subnet) <= 9.5 * MB for subnet in subnets)
    assert nearby.low_ms <= latency_range_ms(supernet, model)[0]


def test_draw_leaves_out_what_was_seen(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(5)
    everything = list(enumerate_subnets(supernet, limit=100))
    nearby = Neighbourhood(supernet, uniform_costs(supernet), Budget(latency_ms=1), low_ms=0, high_ms=99)
    rest = nearby.draw(count=100, random=SplitMix64(0), seen=set(everything[3:]))
    assert set(rest) == set(everything[:3])


@given(data=st.data(), seed=seeds, budget=budgets)
def test_mutants_are_other_subnets_of_the_neighbourhood(priced_supernets, data, seed, budget):
    supernet, model = data.draw(priced_supernets)
    random = SplitMix64(seed)
    subnets, nearby = init(supernet, model, budget, seed=seed)
    for subnet in subnets:
        mutant = nearby_mutate(nearby, subnet, random=random)
        if mutant is not None:
            supernet.check(mutant)
            assert mutant in nearby


def test_a_supernet_of_one_path_has_no_mutants(build_supernet, uniform_costs):
    supernet = build_supernet(3)
    subnets, nearby = init(supernet, uniform_costs(supernet), Budget(latency_ms=3))
    assert subnets == [supernet.original]
    assert nearby_mutate(nearby, supernet.original, random=SplitMix64(0)) is None


def test_mutation_repairs_what_left_the_window(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    model = uniform_costs(supernet)
    budget = Budget(latency_ms=9)
    subnets, nearby = init(supernet, model, budget, count=40, ratio=0.03)
    random = SplitMix64(5)
    mutants = [nearby_mutate(nearby, subnet, random=random) for subnet in subnets]
    found = [mutant for mutant in mutants if mutant is not None]
    assert len(found) > 30  # without repair, most changes of a branch leave so narrow a window
    assert sum(mutant != subnet for mutant, subnet in zip(mutants, subnets, strict=True)) > 30


def test_mutation_brings_a_subnet_from_below_into_the_window(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    model = uniform_costs(supernet)
    nearby = Neighbourhood(supernet, model, Budget(latency_ms=11), low_ms=10.5, high_ms=11.5)
    fastest = min(enumerate_subnets(supernet, limit=4096), key=model.latency_ms)
    mutant = nearby_mutate(nearby, fastest, random=SplitMix64(1))
    assert mutant is not None
    assert mutant in nearby


def test_mutations_reach_every_subnet(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(6, int8=["m0_3", "o4"])
    nearby = Neighbourhood(supernet, uniform_costs(supernet), Budget(latency_ms=1), low_ms=0, high_ms=99)
    random = SplitMix64(3)
    reached: dict[Subnet, None] = {supernet.original: None}
    for _ in range(5000):
        mutant = nearby_mutate(nearby, random.choice(list(reached)), random=random)
        if mutant is not None:
            reached[mutant] = None
    assert set(reached) == set(enumerate_subnets(supernet, limit=4096))


def test_equal_seeds_give_equal_mutants(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    model = uniform_costs(supernet)

    def run(seed):
        subnets, nearby = init(supernet, model, Budget(latency_ms=9), seed=seed)
        random = SplitMix64(seed)
        return [nearby_mutate(nearby, subnet, random=random) for subnet in subnets]

    assert run(1) == run(1) != run(2)


def test_the_input_size_changes_only_where_all_blocks_of_the_path_run():
    """The reference bundle has renditions and blocks that run at the model's own size alone."""
    manifest = Path(__file__).parents[2] / "contract" / "bundle" / "manifest.json"
    supernet = decode_manifest(manifest.read_bytes()).supernet()
    model, random = CostModel(dict.fromkeys(supernet.edges, EdgeCost(1.0, 1.0, 1, 1))), SplitMix64(0)
    everything = Neighbourhood(supernet, model, Budget(latency_ms=100.0), 0.0, 100.0)
    sizes = set()
    for subnet in enumerate_subnets(supernet, limit=100):
        for _ in range(40):
            mutated = nearby_mutate(everything, subnet, random=random)
            if mutated is not None:
                supernet.check(mutated)
                sizes.add((subnet.input_size, mutated.input_size))
    assert len(sizes) == 9


def test_each_added_block_is_tried_alone_in_the_rendition_of_what_it_replaces(build_supernet):
    supernet = build_supernet(4, [(0, 2), (1, 4)], int8=["o0", "o1", "o2", "o3", "m0_2"])
    int8 = supernet.in_rendition(supernet.original, "int8")
    assert [str(one) for one in with_each_block(supernet, int8)] == ["m0_2@int8 o2@int8 o3@int8", "o0@int8 m1_4"]
    merged = next(one for one in with_each_block(supernet, int8) if one.edges[0].block == "m0_2")
    assert with_each_block(supernet, merged) == [merged]


def test_a_stitch_is_followed_by_the_blocks_of_the_member_that_it_leads_to():
    def block(name, start, end, kind="original"):
        return Block(name, start, end, kind, 0, 0, (Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0)),))

    cuts = [CutPoint(k, (TensorSpec(f"cut_{k}", (4,)),)) for k in range(4)]
    blocks = [
        block("a.o0", 0, 1),
        block("a.o1", 1, 3),
        block("b.o0", 0, 2),
        block("b.o1", 2, 3),
        block("stitch", 1, 2, "stitch"),
    ]
    supernet = Supernet(cuts, blocks, members=[Member("a", ("a.o0", "a.o1")), Member("b", ("b.o0", "b.o1"))])
    large, small = supernet.originals
    assert [one.block_ids for one in with_each_block(supernet, large)] == [("a.o0", "stitch", "b.o1")]
    assert with_each_block(supernet, small) == []

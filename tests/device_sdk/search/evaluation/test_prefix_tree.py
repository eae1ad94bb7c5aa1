from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_sdk.random_source import SplitMix64
from device_sdk.search.evaluation.prefix_tree import PrefixNode, build_tree, evaluation_cost
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Edge, Subnet

PLENTY = 10**12


def subnet(*names):
    return Subnet(tuple(map(Edge, names)))


def tree_of(supernet, subnets, *, cache_bytes=PLENTY, batch=1, latency=lambda edge: 1.0):
    return build_tree(supernet, subnets, edge_latency_ms=latency, batch=batch, cache_bytes=cache_bytes)


def leaves(node: PrefixNode):
    return [below for below in node.nodes() if not below.children]


def chains(node, above=()):
    """The nodes above every leaf, the root left out."""
    for child in node.children:
        if child.children:
            yield from chains(child, (*above, child))
        else:
            yield above


def feature_bytes(supernet, node, batch):
    return supernet.cut_points[supernet.block(node.prefix[-1].block).end].nbytes * batch


def test_shared_prefixes_become_nodes_and_subnets_leaves(build_supernet):
    supernet = build_supernet(4, [(2, 4)], int8=["o3"])
    subnets = [
        subnet("o0", "o1", "o2", "o3"),
        Subnet((Edge("o0"), Edge("o1"), Edge("o2"), Edge("o3", "int8"))),
        subnet("o0", "o1", "m2_4"),
    ]
    (shared,) = tree_of(supernet, subnets).children
    assert shared.prefix == shared.stretch == (Edge("o0"), Edge("o1"))
    inner, merged = shared.children
    assert inner.stretch == (Edge("o2"),)
    assert [leaf.stretch for leaf in inner.children] == [(Edge("o3"),), (Edge("o3", "int8"),)]
    assert (merged.stretch, merged.children) == ((Edge("m2_4"),), ())


def test_equal_subnets_share_one_leaf(build_supernet):
    supernet = build_supernet(3)
    tree = tree_of(supernet, [supernet.original] * 5)
    assert [leaf.prefix for leaf in tree.children] == [supernet.original.edges]


def test_nothing_to_evaluate_is_an_empty_tree(build_supernet):
    assert tree_of(build_supernet(3), []).children == ()


@given(data=st.data(), cache_bytes=st.integers(0, 200), batch=st.integers(1, 3))
def test_every_chain_stays_within_the_cache_and_every_subnet_is_a_leaf(
    supernets, all_subnets, data, cache_bytes, batch
):
    supernet = data.draw(supernets)
    subnets = data.draw(st.lists(st.sampled_from(all_subnets(supernet)), min_size=1, max_size=12))
    tree = tree_of(supernet, subnets, cache_bytes=cache_bytes, batch=batch)
    assert sorted(leaf.prefix for leaf in leaves(tree)) == sorted({one.edges for one in subnets})
    for chain in chains(tree):
        assert sum(feature_bytes(supernet, node, batch) for node in chain) <= cache_bytes
    parents = [(tree, child) for child in tree.children]
    parents += [(node, child) for node in tree.nodes() for child in node.children]
    assert all(parent.prefix + child.stretch == child.prefix for parent, child in parents)


@given(data=st.data())
def test_with_room_for_all_no_prefix_runs_twice(supernets, all_subnets, data):
    supernet = data.draw(supernets)
    subnets = data.draw(st.lists(st.sampled_from(all_subnets(supernet)), min_size=1, max_size=12))
    cost = evaluation_cost(tree_of(supernet, subnets), lambda edge: 1.0)
    prefixes = {one.edges[:length] for one in subnets for length in range(1, len(one.edges) + 1)}
    assert cost.edge_runs == len(prefixes)
    assert cost.edge_runs_without_reuse == sum(len(one.edges) for one in set(subnets))


def test_without_room_every_subnet_runs_alone(elastic_supernet):
    supernet = elastic_supernet(8)
    subnets = sample_uniformly(supernet, count=20, random=SplitMix64(1))
    cost = evaluation_cost(tree_of(supernet, subnets, cache_bytes=0), lambda edge: 1.0)
    assert cost.edge_runs == cost.edge_runs_without_reuse
    assert cost.share_saved == 0


def test_more_cache_never_costs_more_and_saves_much_on_a_long_chain(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(27)
    latency = uniform_costs(supernet).edge_latency_ms
    subnets = sample_uniformly(supernet, count=100, random=SplitMix64(1))
    one_feature = supernet.cut_points[1].nbytes
    saved = []
    for features in (0, 1, 2, 4, 100):
        tree = tree_of(supernet, subnets, cache_bytes=features * one_feature, latency=latency)
        saved.append(evaluation_cost(tree, latency).share_saved)
    assert saved == sorted(saved)
    assert saved[0] == 0
    assert 0.1 < saved[-1] < 1


def test_the_more_important_prefix_is_kept(build_supernet):
    # importance is prefix latency × share; there is room for one feature
    supernet = build_supernet(3, int8=["o1", "o2"])
    fp32, int8 = Edge("o1"), Edge("o1", "int8")
    subnets = [
        Subnet((Edge("o0"), fp32, Edge("o2"))),
        Subnet((Edge("o0"), fp32, Edge("o2", "int8"))),
        Subnet((Edge("o0"), int8, Edge("o2"))),
    ]
    room = supernet.cut_points[1].nbytes

    def kept(slow):
        tree = tree_of(supernet, subnets, cache_bytes=room, latency=lambda edge: 10 if edge == slow else 1)
        return [node.prefix for node in tree.nodes() if node.children]

    assert kept(slow=fp32) == [(Edge("o0"), fp32)]
    assert kept(slow=Edge("o0")) == [(Edge("o0"),)]

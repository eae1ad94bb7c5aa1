"""The dynamic programme that names homes, against every assignment."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet

HOMES = ("", "cpu-2t", "openvino-1t")
milliseconds = st.floats(0.01, 2.0)


@st.composite
def priced_paths(draw):
    """A path of a few blocks, costs at three homes, some of which a block lacks, and crossings; no offsets."""
    edges = tuple(Edge(f"o{number}") for number in range(draw(st.integers(1, 4))))
    homes = {edge: tuple(edge.on(name) for name in HOMES if not name or draw(st.booleans())) for edge in edges}
    at_homes = [one for those in homes.values() for one in those]
    costs = {one: EdgeCost(draw(milliseconds), 0.0, 10, 10) for one in at_homes}
    crossings = {(name, one): draw(milliseconds) for one in at_homes for name in HOMES if name != one.home}
    return Subnet(edges), homes, CostModel(costs, crossing_ms=crossings)


@given(priced_paths())
def test_the_homes_that_are_named_are_the_fastest_of_all_assignments(drawn):
    subnet, homes, costs = drawn
    free = costs.at_best_homes(homes)
    every = [Subnet(edges) for edges in product(*(homes[edge] for edge in subnet.edges))]
    least_ms = min(map(costs.latency_ms, every))
    assert abs(costs.latency_ms(free.housed(subnet)) - least_ms) < 1e-9
    assert abs(free.latency_ms(subnet) - least_ms) < 1e-9


@given(priced_paths())
def test_an_edge_that_names_no_home_costs_at_least_its_fastest(drawn):
    subnet, homes, costs = drawn
    free = costs.at_best_homes(homes)
    assert sum(map(free.edge_latency_ms, subnet.edges)) <= free.latency_ms(subnet) + 1e-9


def model(**settings):
    first, second = Edge("o0"), Edge("o1")
    costs = {
        edge.on(home): EdgeCost(ms, ms, 10, 10)
        for edge in (first, second)
        for home, ms in {"": 1.0, "cpu-2t": 0.6}.items()
    }
    homes = {edge: (edge, edge.on("cpu-2t")) for edge in (first, second)}
    return Subnet((first, second)), CostModel(costs, **settings).at_best_homes(homes)


def test_an_edge_that_names_a_home_keeps_it():
    subnet, free = model()
    kept = Subnet((subnet.edges[0].on("cpu-2t"), subnet.edges[1]))
    assert [edge.home for edge in free.housed(kept).edges] == ["cpu-2t", "cpu-2t"]
    assert [edge.home for edge in free.housed(subnet).edges] == ["cpu-2t", "cpu-2t"]


def test_a_path_has_the_offset_of_the_homes_that_it_runs_at():
    subnet, free = model(offset_ms=0.1, home_offset_ms={"cpu-2t": 2.0})
    assert [edge.home for edge in free.housed(subnet).edges] == ["", ""]
    assert free.latency_ms(subnet) == 2.1


def test_a_slower_device_is_slower_at_every_home_and_between_them():
    subnet, free = model(home_offset_ms={"cpu-2t": 0.2}, crossing_ms={("", Edge("o1", home="cpu-2t")): 0.3})
    mixed = Subnet((subnet.edges[0], subnet.edges[1].on("cpu-2t")))
    assert abs(free.slowed(2.0).latency_ms(mixed) - 2 * free.latency_ms(mixed)) < 1e-9


def test_without_homes_everything_is_as_it_was():
    subnet, free = model()
    one = CostModel({edge: free.edge_costs[edge] for edge in subnet.edges})
    assert one.at_best_homes({}) == one
    assert one.housed(subnet) == subnet


def test_no_offset_of_homes_makes_a_path_take_no_time():
    subnet, free = model(offset_ms=-5.0, home_offset_ms={"cpu-2t": -7.0})
    assert free.latency_ms(subnet) > 0

from __future__ import annotations

from device_sdk.execution.open_homes import ONE_HOME, OpenHomes
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Edge

HOMES = OpenHomes((Home("cpu", 1), Home("cpu", 2), Home("openvino", 2)), {"openvino-2t": frozenset({"o1"})})


def homes_of(homes, supernet, edge):
    return [one.home for one in homes.of(supernet, edge)]


def test_an_edge_has_every_open_home_but_those_that_refuse_its_block(bundle):
    assert homes_of(HOMES, bundle.supernet, Edge("o0")) == ["", "cpu-2t", "openvino-2t"]
    assert homes_of(HOMES, bundle.supernet, Edge("o1")) == ["", "cpu-2t"]


def test_a_limit_on_threads_leaves_homes_with_more_of_them_out(bundle):
    assert homes_of(HOMES.within(1), bundle.supernet, Edge("o0")) == [""]
    assert homes_of(HOMES.within(2), bundle.supernet, Edge("o1")) == ["", "cpu-2t"]
    assert HOMES.within(None) == HOMES


def test_one_home_is_no_choice(bundle):
    assert ONE_HOME.of(bundle.supernet, Edge("o0")) == (Edge("o0"),)
    assert ONE_HOME.of_each(bundle.supernet, bundle.supernet.edges) == {}
    assert not OpenHomes((Home(),)).several


def test_the_first_home_of_a_path_is_the_first_that_each_edge_has(bundle):
    path = bundle.supernet.original
    assert HOMES.first(bundle.supernet, path) == path
    other = OpenHomes(HOMES.homes, {"cpu-1t": frozenset({"o0"})})
    assert [edge.home for edge in other.first(bundle.supernet, path).edges][:2] == ["cpu-2t", ""]

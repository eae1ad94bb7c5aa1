from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph
from benchmarks.auto_split.problem import Link, evaluate, server_alone, uniform_bits
from device_sdk.errors import UsageError
from device_sdk.supernet.cost import Uplink


@pytest.fixture
def shortcut(chain):
    """Three layers; the third reads the first's output beside the second's."""
    layers = (
        Layer("first", (0,), 100, 40, Gemm(100, 3, 1)),
        Layer("second", (1,), 20, 40, Gemm(20, 3, 1)),
        Layer("add", (1, 2), 100),
    )
    return replace(chain(3), graph=LayerGraph(layers, input_values=400))


def test_a_shortcut_crosses_with_the_branch_and_stays_in_memory(shortcut):
    graph = shortcut.graph
    assert [graph.crossing(position) for position in range(4)] == [(0,), (1,), (1, 2), ()]
    assert [graph.live(index) for index in (1, 2, 3)] == [(0, 1), (1, 2), (1, 2, 3)]
    assert graph.working_bytes(3, (8, 8, 4, 2)) == 100 + 10 + 25


def test_the_latency_is_the_sum_of_its_parts(shortcut):
    link = Link(Uplink(0.8, 2.0), overhead_bytes=10, packing_ms_per_value=0.01, unpacking_ms_per_value=0.02)
    problem = replace(shortcut, link=link)
    found = evaluate(problem, 2, *uniform_bits(problem.graph, 2, 8), (8, 2))
    assert found.bytes_sent == 100 + 5 + 10
    assert found.transfer_ms == pytest.approx(2.0 + found.bytes_sent / 100)
    assert (found.packing_ms, found.unpacking_ms) == (pytest.approx(1.2), pytest.approx(2.4))
    assert found.server_ms == 1.0
    parts = (found.device_ms, found.packing_ms, found.transfer_ms, found.unpacking_ms, found.server_ms)
    assert found.latency_ms == pytest.approx(sum(parts))


def test_what_is_sent_in_fewer_bits_adds_its_error_once(shortcut):
    whole = evaluate(shortcut, 2, *uniform_bits(shortcut.graph, 2, 8), (8, 8))
    fewer = evaluate(shortcut, 2, *uniform_bits(shortcut.graph, 2, 8), (8, 2))
    assert fewer.error - whole.error == pytest.approx(1.0 - 0.01)


def test_nothing_is_sent_in_more_bits_than_it_was_computed_in(shortcut):
    found = evaluate(shortcut, 2, *uniform_bits(shortcut.graph, 2, 2), (8, 8))
    assert found.sent_bits == (2, 2)


def test_the_server_alone_gets_the_input_as_it_is_without_any_error(shortcut):
    found = server_alone(shortcut)
    assert (found.kind, found.bytes_sent, found.error, found.peak_bytes) == ("server", 400, 0.0, 0)
    assert found.packing_ms == found.device_ms == 0.0


def test_a_network_that_reads_what_is_not_computed_yet_is_refused():
    with pytest.raises(UsageError, match="reads tensors that are not computed"):
        LayerGraph((Layer("one", (1,), 1),), input_values=1)


def test_lists_of_another_length_are_refused(shortcut):
    with pytest.raises(UsageError, match="not given for every layer"):
        replace(shortcut, server_ms=(1.0,))

from __future__ import annotations

from itertools import chain, combinations

import pytest

from benchmarks.auto_split.hardware import Hardware
from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph
from benchmarks.auto_split.problem import Link, SplitProblem
from benchmarks.support.minimum_cut import division, minimum_cut
from device_sdk.supernet.cost import Uplink

SLOW = Hardware(name="slow", macs_per_s=1e5, bytes_per_s=2e4, on_chip_bytes=40, memory_bytes=1e6)


def branching(mbps):
    """Two branches behind a stem, joined at the end; the second is narrow."""
    sizes = {"stem": (0,), "wide": (1,), "narrow": (1,), "join": (2, 3), "end": (4,)}
    outputs = {"stem": 300, "wide": 400, "narrow": 5, "join": 405, "end": 3}
    layers = tuple(Layer(name, inputs, outputs[name], 10, Gemm(outputs[name], 2, 1)) for name, inputs in sizes.items())
    return SplitProblem(
        graph=LayerGraph(layers, input_values=500),
        device=SLOW,
        server_ms=(0.1, 0.1, 0.1, 0.1, 0.1),
        link=Link(Uplink(mbps, 2.0), overhead_bytes=10),
        weight_errors=({},) * 5,
        activation_errors=({},) * 6,
    )


def divisions(problem):
    layers = range(1, problem.graph.count + 1)
    for subset in chain.from_iterable(combinations(layers, count) for count in range(len(layers) + 1)):
        on_device = frozenset(subset)
        if all(source in on_device or source == 0 for i in on_device for source in problem.graph.layer(i).inputs):
            yield division(problem, on_device, 16)


@pytest.mark.parametrize("mbps", [0.01, 0.1, 0.3, 1.0, 3.0, 100.0])
def test_it_equals_trying_every_division(mbps):
    problem = branching(mbps)
    assert minimum_cut(problem).latency_ms == pytest.approx(min(one.latency_ms for one in divisions(problem)))

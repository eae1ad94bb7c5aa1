from __future__ import annotations

from itertools import product

import pytest
from hypothesis import strategies as st

from benchmarks.auto_split.hardware import Hardware
from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph
from benchmarks.auto_split.problem import Link, SplitProblem, evaluate, keeps_limits
from device_sdk.supernet.cost import Uplink

SLOW = Hardware(name="slow", macs_per_s=1e6, bytes_per_s=2e4, on_chip_bytes=40, memory_bytes=1e6)
WIDTHS = (2, 8)


@st.composite
def _graphs(draw, max_layers=3):
    layers = []
    for index in range(1, draw(st.integers(1, max_layers)) + 1):
        earlier = draw(st.sets(st.integers(0, index - 1), max_size=2))
        inputs = tuple(sorted(earlier | {index - 1}))
        outputs, weights = draw(st.integers(1, 60)), draw(st.sampled_from([0, 7, 40]))
        gemm = Gemm(outputs, 3, 1) if weights else None
        layers.append(Layer(f"layer {index}", inputs, outputs, weights, gemm))
    return LayerGraph(tuple(layers), input_values=draw(st.integers(1, 200)))


@st.composite
def _problems(draw, max_layers=3):
    graph = draw(_graphs(max_layers))
    errors = st.fixed_dictionaries({2: st.floats(0.5, 4), 8: st.floats(0, 0.5)})
    return SplitProblem(
        graph=graph,
        device=SLOW,
        server_ms=tuple(draw(st.floats(0, 2)) for _ in graph.layers),
        link=Link(
            Uplink(draw(st.sampled_from([0.01, 0.1, 3.0])), draw(st.sampled_from([0.0, 1.0]))),
            overhead_bytes=draw(st.sampled_from([0, 20])),
            packing_ms_per_value=0.001,
            unpacking_ms_per_value=0.002,
        ),
        weight_errors=tuple(draw(errors) for _ in graph.layers),
        activation_errors=tuple(draw(errors) for _ in range(graph.count + 1)),
        widths=WIDTHS,
        sent_widths=draw(st.sampled_from([WIDTHS, (1, 2, 8)])),
        memory_bytes=draw(st.sampled_from([30, 100, float("inf")])),
        max_error=draw(st.sampled_from([0.5, 4, float("inf")])),
    )


@pytest.fixture(scope="session")
def problems():
    return _problems()


@pytest.fixture(scope="session")
def graphs():
    return _graphs


@pytest.fixture(scope="session")
def every_solution():
    """All solutions that keep the limits, by trying every position and all bits."""

    def solve(problem):
        graph = problem.graph
        for position in range(graph.count + 1):
            weights = [problem.widths if layer.weights else (0,) for layer in graph.layers[:position]]
            crossing = graph.crossing(position) if position < graph.count else ()
            for bits in product(*weights, *([problem.widths] * position), *([problem.sent_widths] * len(crossing))):
                own, activations, sent = bits[:position], bits[position : 2 * position], bits[2 * position :]
                solution = evaluate(problem, position, own, activations, sent)
                if keeps_limits(problem, solution):
                    yield solution

    return solve


@pytest.fixture(scope="session")
def chain():
    """A chain of equal layers behind a large input."""

    def build(count, *, mbps=0.1):
        layers = tuple(Layer(f"layer {i}", (i - 1,), 50, 40, Gemm(50, 3, 1)) for i in range(1, count + 1))
        errors = {2: 1.0, 8: 0.01}
        return SplitProblem(
            graph=LayerGraph(layers, input_values=400),
            device=SLOW,
            server_ms=(1.0,) * count,
            link=Link(Uplink(mbps)),
            weight_errors=(errors,) * count,
            activation_errors=(errors,) * (count + 1),
            widths=WIDTHS,
            sent_widths=WIDTHS,
        )

    return build

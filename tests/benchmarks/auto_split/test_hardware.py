from __future__ import annotations

import numpy as np
import pytest

from benchmarks.auto_split.hardware import EYERISS, TPU, Array, Hardware, MeasuredLayers, server_latencies_ms
from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph
from device_sdk.errors import UsageError

PLAIN = Hardware(name="plain", macs_per_s=1e6, bytes_per_s=1e3, on_chip_bytes=100, memory_bytes=1e6)


def graph_of(weights=80, outputs=10, macs=1, inputs=80):
    return LayerGraph((Layer("one", (0,), outputs, weights, Gemm(1, macs, 1)),), input_values=inputs)


def ms(hardware, graph, bits):
    return float(hardware.layer_ms(graph, 1, bits, np.array([bits]), bits))


def test_traffic_bounds_a_layer_and_shrinks_with_the_bits():
    assert ms(PLAIN, graph_of(), 8) == pytest.approx(80 + 80 + 10)
    assert ms(PLAIN, graph_of(), 4) == pytest.approx((80 + 80 + 10) / 2)


def test_arithmetic_bounds_a_layer_and_does_not_shrink_with_the_bits():
    graph = graph_of(macs=1_000_000)
    assert ms(PLAIN, graph, 8) == ms(PLAIN, graph, 2) == pytest.approx(1000)


def test_what_does_not_fit_on_the_chip_is_read_again():
    graph = graph_of(weights=250, inputs=150)
    # three parts of the weights beside the inputs: 250 + 3 · 150; two parts of the inputs beside the weights: more
    assert ms(PLAIN, graph, 8) == pytest.approx(150 + 2 * 250 + 10)


def test_a_device_k_times_slower():
    slow = Hardware(name="slow", macs_per_s=1e6, bytes_per_s=1e3, on_chip_bytes=100, memory_bytes=1e6, factor=20)
    assert ms(slow, graph_of(), 8) == pytest.approx(20 * ms(PLAIN, graph_of(), 8))
    assert ms(MeasuredLayers((1.5,), factor=20), graph_of(), 2) == pytest.approx(30)


def test_choices_are_priced_at_once():
    graph = graph_of()
    together = PLAIN.layer_ms(graph, 1, np.array([8, 4]), np.array([[8], [4]]), np.array([8, 4]))
    assert np.asarray(together).tolist() == [ms(PLAIN, graph, 8), ms(PLAIN, graph, 4)]


@pytest.mark.parametrize(
    ("side", "gemm", "simulated"),
    [
        ((12, 14), Gemm(196, 64, 32), 4487),
        ((12, 14), Gemm(49, 128, 20), 1519),
        ((12, 14), Gemm(100, 27, 16), 917),
        ((32, 32), Gemm(196, 64, 32), 881),
        ((32, 32), Gemm(49, 128, 20), 379),
        ((32, 32), Gemm(100, 27, 16), 355),
    ],
)
def test_a_systolic_array_takes_the_cycles_that_scale_sim_simulates(side, gemm, simulated):
    assert Array(*side, 1e6).cycles(gemm) == simulated + 1  # scalesim 3.0.0, output stationary, without stalls


def test_groups_run_one_after_another():
    array = Array(4, 4, 1e6)
    assert array.cycles(Gemm(4, 10, 4, groups=3)) == 3 * array.cycles(Gemm(4, 10, 4))


def test_the_papers_edge_is_hundreds_of_times_slower_than_its_server():
    graph = LayerGraph((Layer("one", (0,), 100, 100, Gemm(1000, 1000, 100)),), input_values=100)
    assert server_latencies_ms(EYERISS, graph)[0] / server_latencies_ms(TPU, graph)[0] > 500


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(UsageError):
        Hardware(name="none", macs_per_s=0, bytes_per_s=1, on_chip_bytes=1, memory_bytes=1)

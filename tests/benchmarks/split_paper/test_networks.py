from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from benchmarks.split_paper.detector import YOLO_INPUT, yolov3  # noqa: E402
from benchmarks.split_paper.networks import INPUT, torchvision_network, trace_layers  # noqa: E402


def layers_of(network, shape=INPUT, **options):
    return trace_layers(network, torch.zeros(1, *shape, device="meta"), **options)


def test_macs_and_weights_are_the_published_ones():
    graph = layers_of(torchvision_network("resnet50")).graph
    assert sum(layer.macs for layer in graph.layers) == pytest.approx(4.09e9, rel=0.01)
    assert sum(layer.weights for layer in graph.layers) == pytest.approx(25.5e6, rel=0.01)
    detector = layers_of(yolov3(), YOLO_INPUT).graph
    assert sum(layer.macs for layer in detector.layers) == pytest.approx(32.9e9, rel=0.01)


def test_what_is_fused_is_one_layer_and_a_shortcut_crosses_with_the_branch():
    layers = layers_of(torchvision_network("resnet18"))
    assert layers.graph.layers[0].name == "conv1"
    assert layers.outputs[0] == "relu"
    graph = layers.graph
    assert {len(graph.crossing(position)) for position in range(1, graph.count)} == {1, 2}
    assert layers_of(torchvision_network("resnet18"), fused=False).graph.count > layers.graph.count

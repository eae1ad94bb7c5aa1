from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnxruntime import quantization as tool
from torch import nn

from device_sdk.bundles.runnable import golden_inputs, matches
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec
from packager.errors import VerificationError
from packager.exporting.export import export_blocks
from packager.exporting.onnx_exporter import OPSET, export_whole, select_by_convolution
from packager.exporting.verification import SELF_TEST_BATCH, SELF_TEST_SEED, TorchReference
from packager.renditions.calibration import Calibration
from packager.renditions.int8 import fitted, make_int8, products_only, quantised
from packager.renditions.rendition_set import part_stretch
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace

FLOAT_ARITHMETIC = {"Conv", "Add", "Relu", "Gemm", "FusedConv"}


def graph_of(data):
    return onnx.GraphProto.FromString(data)


def answer(stretch, images):
    return OnnxRuntime(threads=1).load(stretch).run([images.numpy()])[0]


@pytest.fixture
def digit_samples(digits, digit_images):
    return digit_images("search", 200), digits("search", 200).labels


# What ONNX Runtime makes of composed int8 blocks


def test_int8_neighbours_are_integer_from_end_to_end(tiny_exported, tiny_int8, in_place_of, composed, optimized):
    originals = [block.id for block in tiny_exported.expansion.originals]
    graph = optimized(composed(in_place_of(tiny_exported, tiny_int8), originals))
    operators = {node.op_type for node in graph.node}
    assert {"QLinearConv", "QLinearAdd"} <= operators
    assert not operators & FLOAT_ARITHMETIC
    # The tensors at cut points exist no more, neither dequantised for the neighbour nor quantised by it; but for the
    # last, since a mean is no integer operator.
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    assert [f"cut_{index}" for index in range(1, 6) if f"cut_{index}" in names] == ["cut_5"]


def test_the_composed_path_has_the_very_operators_of_the_model_quantised_in_one_piece(
    tiny_exported, tiny_int8, in_place_of, composed, operators, calibrate
):
    expansion = tiny_exported.expansion
    images = calibrate(expansion).samples.numpy()

    class Reader(tool.CalibrationDataReader):
        batches = iter([{"input": images}])

        def get_next(self):
            return next(self.batches, None)

    whole = onnx.ModelProto.FromString(export_whole(expansion.traced.whole, expansion.traced.tensors[0]))
    select_by_convolution(whole.graph)  # as the blocks are exported
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.onnx"
        kinds = {"activation_type": tool.QuantType.QUInt8, "weight_type": tool.QuantType.QInt8}
        tool.quantize_static(whole, path, Reader(), per_channel=True, **kinds)
        expected = operators(path.read_bytes())
    originals = [block.id for block in expansion.originals]
    assert operators(composed(in_place_of(tiny_exported, tiny_int8), originals)) == expected


def test_what_follows_a_skip_stays_integer(tiny_traced, calibrate, in_place_of, composed, optimized, work):
    exported = export_blocks(expand(tiny_traced, max_span=1, identity=True))
    made = make_int8(exported, calibrate(exported.expansion), SilentProgress(), work)
    assert made.own["i1-2"] == exported.own["i1-2"]  # the same graph: one blob for both renditions
    assert made.quantization[1] == made.quantization[2] == made.quantization[3] != made.quantization[4]
    path = ["o0", "i1-2", "o2", "o3", "o4", "o5"]
    operators = {node.op_type for node in optimized(composed(in_place_of(exported, made), path)).node}
    assert "QLinearConv" in operators
    assert not operators & FLOAT_ARITHMETIC


def test_int8_and_fp32_blocks_run_together(tiny_exported, tiny_int8, in_place_of, digit_samples):
    images, labels = digit_samples
    originals = [block.id for block in tiny_exported.expansion.originals]
    mixed = in_place_of(tiny_exported, tiny_int8, ("o1", "o4"))
    expected = answer(tiny_exported.stretch(originals), images)
    for exported in (mixed, in_place_of(tiny_exported, tiny_int8)):
        logits = answer(exported.stretch(originals), images)
        assert np.mean((logits - expected) ** 2) < 0.01 * expected.var()
        right, expected_right = (logits.argmax(1) == labels).mean(), (expected.argmax(1) == labels).mean()
        assert right > expected_right - 0.02


def test_every_path_composes(tiny_exported, tiny_int8, in_place_of, noise):
    int8 = in_place_of(tiny_exported, tiny_int8)
    for path in (["o0", "m1-4", "o4", "o5"], ["o0", "o1", "m2-5", "o5"], ["o0", "m1-3", "m3-5", "o5"]):
        for batch in (1, 3, 64):
            assert answer(int8.stretch(path), noise(batch, 1, 8, 8)).shape == (batch, 10)


def test_an_error_on_noise_alone_leaves_no_block_out(tiny_exported, calibrate, in_place_of, work):
    images = calibrate(tiny_exported.expansion).samples * 0.02  # the golden inputs reach two hundred times as far
    calibration = Calibration(tiny_exported.expansion, images)
    made = make_int8(tiny_exported, calibration, SilentProgress(), work)
    (noise,) = golden_inputs(tiny_exported.expansion.cut_points[0], seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
    noise = torch.from_numpy(noise)
    expected, int8 = (answer(one.stretch(["o0"]), noise) for one in (tiny_exported, in_place_of(tiny_exported, made)))
    assert np.mean((int8 - expected) ** 2) > 0.25 * expected.var()
    assert made.errors["o0"] < 0.01
    assert not made.notes


# What is in a fragment


def test_all_that_touch_a_cut_point_use_its_scale(tiny_exported, tiny_int8):
    for block in tiny_exported.expansion.blocks:
        graph = graph_of(tiny_int8.own[block.id])
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        first = [node for node in graph.node if node.op_type == "QuantizeLinear" and f"cut_{block.start}" in node.input]
        last = [node for node in graph.node if f"cut_{block.end}" in node.output]
        assert [node.op_type for node in last] == ["DequantizeLinear"]
        assert len(first) == 1 or block.id == "o5"  # the mean at the head's start is no integer operator
        for index, nodes in ((block.start, first), (block.end, last)):
            for node in nodes:
                scale, zero_point = (weights[name] for name in node.input[1:])
                expected = tiny_int8.quantization[index]
                assert (scale, zero_point) == (np.float32(expected.scale), expected.zero_point)
                assert zero_point.dtype == np.uint8


def test_weights_are_stored_in_8_bits(tiny_exported, tiny_int8):
    convolution = graph_of(tiny_int8.own["o4"])
    matrices = [tensor for tensor in convolution.initializer if len(tensor.dims) > 1]
    assert [tensor.data_type for tensor in matrices] == [onnx.TensorProto.INT8] * 2
    assert len(tiny_int8.own["o4"]) < 0.5 * 4 * sum(np.prod(tensor.dims) for tensor in matrices)


def test_integer_operators_answer_what_their_pairs_say_on_every_processor(
    tiny_exported, tiny_int8, in_place_of, composed, digit_samples
):
    # Without VNNI x86 adds two products in 16 bits: weights beyond ±64 would saturate there.
    images, _ = digit_samples
    originals = [block.id for block in tiny_exported.expansion.originals]
    model = composed(in_place_of(tiny_exported, tiny_int8), originals)
    weights = [numpy_helper.to_array(tensor) for tensor in onnx.ModelProto.FromString(model).graph.initializer]
    assert max(np.abs(values.astype(int)).max() for values in weights if values.dtype == np.int8) == 64
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # the pairs, in float
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    found = OnnxRuntime(threads=1).load_model(model).run([images.numpy()])[0]
    assert np.mean((found - expected) ** 2) < 1e-3 * expected.var()


def test_fragments_keep_the_rules_of_fragments(tiny_exported, tiny_int8):
    for block in tiny_exported.expansion.blocks:
        graph = graph_of(tiny_int8.own[block.id])
        assert {field.name for field, _ in graph.ListFields()} <= {"node", "initializer"}
        outputs = {name for node in graph.node for name in node.output} - {f"cut_{block.end}"}
        names = {*outputs, *(tensor.name for tensor in graph.initializer), *(node.name for node in graph.node)}
        assert all(name.startswith(f"{block.id}/") for name in names)
        assert not any(node.domain for node in graph.node)
    assert tiny_int8.opset == OPSET


def test_the_same_samples_give_the_same_bytes(tiny_exported, tiny_int8, calibrate, recorded, work):
    again = make_int8(tiny_exported, calibrate(tiny_exported.expansion), recorded, work)
    assert (again.own, again.golden, again.errors) == (tiny_int8.own, tiny_int8.golden, tiny_int8.errors)
    assert recorded.tasks == {"calibrate int8": 0, "quantise to int8": 0}


# How good it is


def test_errors_are_measured_and_small(tiny_exported, tiny_int8):
    assert tiny_int8.errors.keys() == tiny_exported.own.keys()
    assert all(0 < error < 0.01 for error in tiny_int8.errors.values())


def test_golden_vectors_are_what_a_fragment_answers_and_near_to_what_torch_does(tiny_exported, tiny_int8):
    cut_points, reference = tiny_exported.expansion.cut_points, TorchReference(tiny_exported.expansion)
    for part, golden in tiny_int8.golden.items():
        inputs = golden_inputs(cut_points[reference.starts[part]], seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        found = answer(part_stretch(tiny_exported, part, graph_of(tiny_int8.own[part])), torch.from_numpy(inputs[0]))
        (expected,) = reference.answer([part], inputs)
        assert matches(golden, [found])
        assert not matches(golden, [found + 2 * golden.tolerance])
        assert np.mean((found - expected) ** 2) < 0.05 * expected.var()


def test_exits_are_quantised_too(tiny_exported_with_exits, calibrate, recorded, work, digit_images):
    exported = tiny_exported_with_exits
    made = make_int8(exported, calibrate(exported.expansion), recorded, work)
    for exit_ in exported.expansion.exits:
        graph = graph_of(made.own[exit_.id])
        assert any(tensor.data_type == onnx.TensorProto.INT8 for tensor in graph.initializer)
        assert any(f"exit_{exit_.id}" in node.output for node in graph.node)
        assert made.errors[exit_.id] < 0.01


# What cannot be quantised


class Outlier(nn.Module):
    """One huge activation takes all levels of the tensor between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(8)[:, :, None, None])
            self.last.weight.copy_(torch.eye(8)[:, :, None, None])
            self.first.weight[0] *= 1e6
            self.last.weight[0] = 0

    def forward(self, x):
        return self.last(self.first(x))


@pytest.fixture(scope="module")
def odd(tiny_traced, calibrate, tmp_path_factory):
    """The originals in int8 beside three blocks that are not easily quantised."""
    head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 4 * 4, 10), nn.ReLU())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        nn.init.normal_(head[1].weight, std=0.05)
    blocks = [
        TrainableBlock("outlier", 1, 3, "merged", Outlier(), macs=1),
        TrainableBlock("tanh", 1, 3, "merged", nn.Tanh(), macs=0),
        TrainableBlock("relu", 4, 6, "merged", head, macs=1),
    ]
    expansion = expand(tiny_traced, max_span=1)
    exported = export_blocks(replace(expansion, blocks=(*expansion.blocks, *blocks)))
    return make_int8(exported, calibrate(exported.expansion), SilentProgress(), tmp_path_factory.mktemp("odd"))


def test_a_relu_at_the_end_stays_where_its_cut_point_has_negative_values(odd):
    assert odd.quantization[6].zero_point > 0
    assert "Relu" in {node.op_type for node in graph_of(odd.own["relu"]).node}
    assert odd.errors["relu"] < 0.02


def test_a_block_that_loses_too_much_is_left_out_and_named(odd):
    assert "outlier" not in odd.own
    assert "outlier" not in odd.golden
    (note,) = odd.notes
    assert note.startswith("outlier has no int8 rendition: its error would be ")


def test_a_block_in_which_nothing_can_be_quantised_has_no_int8_rendition(odd):
    assert odd.own.keys() == {"o0", "o1", "o2", "o3", "o4", "o5", "relu"}


def test_features_that_are_not_numbers_are_refused(tiny_exported, recorded, work):
    samples = torch.full((4, 1, 8, 8), float("nan"))
    with pytest.raises(VerificationError, match="not finite"):
        make_int8(tiny_exported, Calibration(tiny_exported.expansion, samples), recorded, work)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=50))
def test_levels_reach_from_the_least_to_the_greatest_feature(values):
    features = np.array(values, dtype=np.float32)
    found = fitted(features)
    levels = (np.arange(256) - found.zero_point) * np.float32(found.scale)
    assert 0 in levels
    nearest = np.abs(levels[None] - features[:, None].astype(np.float64)).min(axis=1)
    assert np.all(nearest <= 0.51 * found.scale)


def test_what_leads_to_a_logarithm_is_not_quantised():
    class Loudness(nn.Module):
        def __init__(self):
            super().__init__()
            self.waves, self.after = nn.Conv1d(1, 4, 8, stride=4, bias=False), nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, sounds):
            return self.after(self.waves(sounds).square().clamp(min=1e-6).log())

    torch.manual_seed(0)
    samples = torch.randn(24, 1, 64) * torch.logspace(-3, 0, 24)[:, None, None]
    whole = onnx.ModelProto.FromString(export_whole(Loudness().eval(), TensorSpec("input", (1, 64))))
    quiet = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = quiet.run(None, {"input": samples.numpy()})[0]
    made = quantised(whole, (samples.numpy(),), batch=8)
    weights = {one.name for one in made.graph.initializer if one.data_type == onnx.TensorProto.INT8}
    assert len([name for name in weights if not name.endswith("_zero_point")]) == 1  # of the second convolution alone
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"input": samples.numpy()})[0]
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


class Layer(nn.Module):
    """norm(x + feed-forward(x)) over tokens [n, t, c], one channel of which is far larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        with torch.no_grad():
            self.norm.weight[3] = 60.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.outer(nn.functional.gelu(self.inner(x))))


def test_of_a_transformer_only_what_weights_multiply_is_quantised(noise, work):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), *(Layer() for _ in range(3)), nn.Linear(16, 5)).eval()
    samples = noise(128, 6, 8)
    exported = export_blocks(expand(trace(network, samples[:4]), max_span=1, identity=True))
    made = make_int8(exported, Calibration(exported.expansion, samples), SilentProgress(), work)
    layers = [part for part, data in exported.own.items() if products_only(graph_of(data))]
    assert len(layers) >= 3
    for part in layers:
        graph = graph_of(made.own[part])
        paired = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        assert all(paired >= set(node.input[:2]) for node in graph.node if node.op_type in ("MatMul", "Gemm"))
        others = [node for node in graph.node if node.op_type in ("Add", "LayerNormalization")]
        assert not any(paired & set(node.input[:1]) for node in others if node.op_type == "LayerNormalization")
        assert made.errors[part] < 0.01


def test_a_part_of_convolutions_is_quantised_as_a_whole(tiny_exported):
    assert not any(products_only(graph_of(data)) for data in tiny_exported.own.values())

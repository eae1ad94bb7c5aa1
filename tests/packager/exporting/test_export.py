from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from device_sdk.errors import CompositionError
from device_sdk.fragments.composition import compose
from device_sdk.runtimes import OnnxRuntime
from packager.exporting import part_graphs
from packager.exporting.export import SHARED_MIN_BYTES, ExportedBlocks, export_blocks
from packager.exporting.onnx_exporter import IR_VERSION, OPSET, export_whole
from packager.supernet.expansion import Expansion, expand
from packager.tracing.traced_model import trace


@pytest.fixture(scope="module")
def runtime() -> OnnxRuntime:
    return OnnxRuntime(threads=1)


def graph_of(fragment: bytes) -> onnx.GraphProto:
    return onnx.GraphProto.FromString(fragment)


def torch_answer(expansion: Expansion, block_ids: Sequence[str], inputs: Tensor) -> Tensor:
    modules = {block.id: block.module for block in expansion.blocks}
    with torch.no_grad():
        for name in block_ids:
            inputs = modules[name].eval()(inputs)
    return inputs


def assert_same_answers(exported: ExportedBlocks, block_ids: Sequence[str], runtime: OnnxRuntime, noise) -> None:
    """At batch 1, 3 and 64, the batch axis of one session being dynamic."""
    expansion = exported.expansion
    start = next(block.start for block in expansion.blocks if block.id == block_ids[0])
    session = runtime.load(exported.stretch(block_ids))
    for batch in (1, 3, 64):
        inputs = noise(batch, *expansion.traced.tensors[start].shape, seed=batch).abs()
        expected = torch_answer(expansion, block_ids, inputs).numpy()
        (found,) = session.run([inputs.numpy()])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_every_block_alone_computes_what_torch_computes(tiny_exported, runtime, noise):
    for block in tiny_exported.expansion.blocks:
        assert_same_answers(tiny_exported, [block.id], runtime, noise)


@pytest.mark.parametrize("path", ["o0 o1 o2 o3 o4 o5", "o0 m1-4 o4 o5", "o0 o1 m2-5 o5", "o1 m2-4", "m3-5 o5"])
def test_composed_fragments_compute_what_torch_computes(tiny_exported, runtime, noise, path):
    assert_same_answers(tiny_exported, path.split(), runtime, noise)


def test_the_original_path_equals_the_model_exported_in_one_piece(tiny_exported, runtime, noise):
    traced = tiny_exported.expansion.traced
    whole = runtime.load_model(export_whole(traced.whole, traced.tensors[0]))
    composed = runtime.load(tiny_exported.stretch([block.id for block in tiny_exported.expansion.originals]))
    images = noise(5, 1, 8, 8).numpy()
    np.testing.assert_allclose(composed.run([images])[0], whole.run([images])[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "most"), [("_MOST_MODULES", 8), ("_MOST_BYTES", 20_000)])
def test_what_is_too_large_for_one_graph_is_exported_in_several(
    tiny_traced, tiny_exported, runtime, noise, monkeypatch, bound, most
):
    monkeypatch.setattr(part_graphs, bound, most)
    exporter = Mock(wraps=torch.onnx.export)
    monkeypatch.setattr(torch.onnx, "export", exporter)
    exported = export_blocks(expand(tiny_traced, max_span=3))
    assert 1 < exporter.call_count < len(exported.own) - 2
    assert exported.own.keys() == tiny_exported.own.keys()
    assert exported.shared == tiny_exported.shared  # those of parts in different graphs too
    for path in ("o0 o1 o2 o3 o4 o5", "o0 m1-4 o4 o5"):
        assert_same_answers(exported, path.split(), runtime, noise)


class MovingSamples(nn.Module):
    """Sizes from the input, rows that are half samples, padding, a weight used in two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = self.first(x).relu()
        x = self.second(x.view(batch * 2, 4)).relu().reshape(batch, 8)
        x = self.first(nn.functional.pad(x[:, 2:], (1, 1))).relu()
        return self.last(x.view(batch, 2, 4).flip(1).reshape(batch, 8))


def test_sizes_are_recomputed_in_every_fragment(runtime, noise):
    exported = export_blocks(expand(trace(MovingSamples(), noise(3, 8)), max_span=2))
    names = [block.id for block in exported.expansion.originals]
    assert len(names) == 4
    for name in names:
        assert_same_answers(exported, [name], runtime, noise)
    assert_same_answers(exported, names, runtime, noise)


def test_projected_copies_are_exported_like_the_others(zoo_traced, runtime, noise):
    exported = export_blocks(expand(zoo_traced("resnet8_mlperf_tiny"), max_span=3))
    assert_same_answers(exported, ["o0", "m1-4", "o4"], runtime, noise)


def test_shrunk_blocks_and_skips_are_exported_like_the_others(tiny_traced, runtime, noise):
    exported = export_blocks(expand(tiny_traced, max_span=2, shrink_rates=(0.5,), identity=True))
    for path in ("s1-50", "i2-3", "o0 s1-50 i2-3 o3 i4-5 o5", "i1-2 i2-3 m3-5"):
        assert_same_answers(exported, path.split(), runtime, noise)
    graph = graph_of(exported.own["i2-3"])
    assert [(node.op_type, list(node.input), list(node.output)) for node in graph.node] == [
        ("Identity", ["cut_2"], ["cut_3"])
    ]


# Exits


def test_every_exit_computes_what_torch_computes_at_any_batch(tiny_exported_with_exits, runtime, noise):
    exported = tiny_exported_with_exits
    tensors = exported.expansion.traced.tensors
    assert len(exported.expansion.exits) == 6
    for exit_ in exported.expansion.exits:
        session = runtime.load(exported.stretch([], exit_.id))
        for batch in (1, 3, 64):
            inputs = noise(batch, *tensors[exit_.position].shape, seed=batch).abs()
            with torch.no_grad():
                expected = exit_.module.eval()(inputs).numpy()
            (found,) = session.run([inputs.numpy()])
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_blocks_with_an_exit_at_their_end_answer_both(tiny_exported_with_exits, runtime, noise):
    exported, images = tiny_exported_with_exits, noise(3, 1, 8, 8)
    exit_ = next(exit_ for exit_ in exported.expansion.exits if exit_.id == "x3-conv")
    features, answer = runtime.load(exported.stretch(["o0", "o1", "o2"], exit_.id)).run([images.numpy()])
    with torch.no_grad():
        expected = exported.expansion.traced.features(images)[3]
        np.testing.assert_allclose(features, expected.numpy(), atol=1e-4)
        np.testing.assert_allclose(answer, exit_.module.eval()(expected).numpy(), atol=1e-4)


def test_an_exit_leads_from_its_cut_point_to_a_tensor_of_its_own_name(tiny_exported_with_exits):
    exported = tiny_exported_with_exits
    for exit_ in exported.expansion.exits:
        graph = graph_of(exported.own[exit_.id])
        outputs = [name for node in graph.node for name in node.output]
        used = {name for node in graph.node for name in node.input if name}
        assert f"exit_{exit_.id}" in outputs
        inner = {*outputs, *(tensor.name for tensor in graph.initializer), *(node.name for node in graph.node)}
        inner -= {f"exit_{exit_.id}"}
        assert all(name.startswith(f"{exit_.id}/") for name in inner)
        assert used - inner == {f"cut_{exit_.position}", *exported.needs[exit_.id]}


def test_exits_are_exported_for_inference(tiny_exported_with_exits):
    for exit_ in tiny_exported_with_exits.expansion.exits:
        graph = graph_of(tiny_exported_with_exits.own[exit_.id])
        assert not any(
            attribute.name == "training_mode" and attribute.i for node in graph.node for attribute in node.attribute
        )


# What is in a fragment


def test_boundaries_are_named_after_cut_points_and_all_else_after_the_block(tiny_exported):
    for block in tiny_exported.expansion.blocks:
        graph = graph_of(tiny_exported.own[block.id])
        outputs = [name for node in graph.node for name in node.output]
        used = {name for node in graph.node for name in node.input if name}
        start, end = f"cut_{block.start}", f"cut_{block.end}"
        assert start in used
        assert end in outputs
        inner = {*outputs, *(tensor.name for tensor in graph.initializer), *(node.name for node in graph.node)} - {end}
        assert all(name.startswith(f"{block.id}/") for name in inner)
        assert used - inner - {start} == set(tiny_exported.needs[block.id])
        assert all(name.startswith("shared/") for name in tiny_exported.needs[block.id])


def test_fragments_hold_nodes_and_initializers_alone(tiny_exported):
    for data in (*tiny_exported.own.values(), *tiny_exported.shared.values()):
        assert {field.name for field, _ in graph_of(data).ListFields()} <= {"node", "initializer"}
    assert all(not graph_of(data).node for data in tiny_exported.shared.values())


def test_fragments_say_nothing_of_the_machine_that_made_them(tiny_exported):
    for data in (*tiny_exported.own.values(), *tiny_exported.shared.values()):
        graph = graph_of(data)
        for item in (*graph.node, *graph.initializer):
            assert not item.metadata_props
            assert not item.doc_string
            if isinstance(item, onnx.NodeProto):
                assert not any(attribute.doc_string for attribute in item.attribute)
        text = data if not graph.node else b"".join(node.SerializeToString() for node in graph.node)
        assert b".py" not in text
        assert b"site-packages" not in text


def test_composed_models_are_valid_onnx(tiny_exported):
    names = [block.id for block in tiny_exported.expansion.originals]
    model = onnx.ModelProto.FromString(compose(tiny_exported.stretch(names)))
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == IR_VERSION
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param


# Weights that several blocks have in common


def test_equal_large_weights_of_several_blocks_are_stored_once(tiny_exported):
    users = [name for needed in tiny_exported.needs.values() for name in needed]
    assert tiny_exported.shared
    for name, data in tiny_exported.shared.items():
        (tensor,) = graph_of(data).initializer
        assert tensor.name == name
        assert len(tensor.raw_data) >= SHARED_MIN_BYTES
        assert users.count(name) >= 2
    large = [
        (tuple(tensor.dims), tensor.raw_data)
        for data in (*tiny_exported.own.values(), *tiny_exported.shared.values())
        for tensor in graph_of(data).initializer
        if len(tensor.raw_data) >= SHARED_MIN_BYTES
    ]
    assert len(large) == len(set(large))


def test_small_weights_are_copied_into_each_block(tiny_exported):
    o1, copied = (graph_of(tiny_exported.own[name]) for name in ("o1", "m1-3"))  # m1-3 starts as a copy of o1
    small = {tensor.raw_data for tensor in o1.initializer if 16 < len(tensor.raw_data) < SHARED_MIN_BYTES}
    assert small & {tensor.raw_data for tensor in copied.initializer}


def test_a_path_over_blocks_with_common_weights_has_them_once(tiny_exported):
    path = ["o0", "o1", "m2-4", "o4", "o5"]
    stretch = tiny_exported.stretch(path)
    needed = {name for block_id in path for name in tiny_exported.needs[block_id]}
    assert len(stretch.fragments) == len(needed) + len(path)


def test_two_fragments_that_define_the_same_name_are_refused(tiny_exported):
    with pytest.raises(CompositionError, match="two fragments define"):
        compose(tiny_exported.stretch(["o1", "o1"]))

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from device_sdk.bundles.runnable import golden_inputs, matches
from device_sdk.runtimes import OnnxRuntime
from packager.errors import VerificationError
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.exporting.verification import SELF_TEST_BATCH, SELF_TEST_SEED, Verifier
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace


def _largest_weight_turned(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[np.abs(values).argmax()] *= -1
    return values


def with_damaged_block(exported: ExportedBlocks, block_id: str, damage: Callable) -> ExportedBlocks:
    graph = onnx.GraphProto.FromString(exported.own[block_id])
    tensor = max(
        (tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT),
        key=lambda tensor: len(tensor.raw_data),
    )
    values = np.frombuffer(tensor.raw_data, dtype=np.float32)
    tensor.raw_data = damage(values).astype(np.float32).tobytes()
    return replace(exported, own={**exported.own, block_id: graph.SerializeToString()})


def test_sound_fragments_pass_and_give_golden_vectors_that_a_device_reproduces(tiny_exported):
    verifier, runtime = Verifier(tiny_exported), OnnxRuntime(threads=1)
    verifier.sampled_subnets(seed=0)
    for block in tiny_exported.expansion.blocks:
        golden = verifier.golden([block.id])
        cut_point = tiny_exported.expansion.cut_points[block.start]
        inputs = golden_inputs(cut_point, seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        answer = runtime.load(tiny_exported.stretch([block.id])).run(inputs)
        assert matches(golden, answer)
        assert not matches(golden, [answer[0] + 3 * golden.tolerance])
        assert golden.tolerance <= 1.01e-3 * float(np.abs(answer[0]).max()) + 1.01e-5


def test_sound_exits_pass_and_give_golden_vectors_that_a_device_reproduces(tiny_exported_with_exits):
    exported = tiny_exported_with_exits
    verifier, runtime = Verifier(exported), OnnxRuntime(threads=1)
    for exit_ in exported.expansion.exits:
        golden = verifier.golden([], exit_.id)
        cut_point = exported.expansion.cut_points[exit_.position]
        inputs = golden_inputs(cut_point, seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        answer = runtime.load(exported.stretch([], exit_.id)).run(inputs)
        assert len(golden.samples) == 1
        assert matches(golden, answer)
        assert not matches(golden, [answer[0] + 3 * golden.tolerance])


def test_an_exit_with_another_weight_is_refused_by_name(tiny_exported_with_exits):
    verifier = Verifier(with_damaged_block(tiny_exported_with_exits, "x3-conv", lambda values: values * 0))
    with pytest.raises(VerificationError, match="exit x3-conv differs from torch by"):
        verifier.golden([], "x3-conv")
    verifier.golden([], "x3-pooled")


def test_the_original_path_is_compared_with_the_model_itself(tiny_exported, noise):
    verifier = Verifier(tiny_exported)
    assert verifier.original_golden().samples
    assert 0 <= verifier.original_difference(noise(9, 1, 8, 8), batch=4) < 1e-4


@pytest.mark.parametrize(
    "damage",
    [_largest_weight_turned, lambda values: values * 0, lambda values: values * np.nan],
    ids=["one sign flipped", "zero", "not a number"],
)
def test_a_fragment_with_another_weight_is_refused_by_name(tiny_exported, damage):
    verifier = Verifier(with_damaged_block(tiny_exported, "o0", damage))
    with pytest.raises(VerificationError, match="block o0 differs from torch by"):
        verifier.golden(["o0"])
    with pytest.raises(VerificationError, match=r"subnet o0 o1 .* differs from torch"):
        verifier.original_golden()
    with pytest.raises(VerificationError, match=r"subnet o0 .* differs from torch"):
        verifier.sampled_subnets(seed=0)
    verifier.golden(["o1"])


def test_torch_modules_that_changed_after_the_export_are_noticed(tiny_exported):
    verifier = Verifier(tiny_exported)
    block = tiny_exported.expansion.added[0]
    parameter = next(block.module.parameters())
    kept = parameter.detach().clone()
    try:
        with torch.no_grad():
            parameter.mul_(1.5)
        with pytest.raises(VerificationError, match=f"block {block.id} differs"):
            verifier.golden([block.id])
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def test_an_answer_of_another_shape_is_refused(tiny_exported):
    graph = onnx.GraphProto.FromString(tiny_exported.own["o4"])
    last = graph.node[-1]
    assert list(last.output) == ["cut_5"]
    last.output[0] = "o4/answer"
    graph.node.add(op_type="Flatten", input=["o4/answer"], output=["cut_5"], name="o4/flatten")
    broken = replace(tiny_exported, own={**tiny_exported.own, "o4": graph.SerializeToString()})
    with pytest.raises(VerificationError, match="block o4 answers"):
        Verifier(broken).golden(["o4"])


# Models that magnify rounding


def exported_chain(*, layers: int) -> ExportedBlocks:
    """Plain convolutions, each of which magnifies a small difference: rounding grows to per mille of the answers."""
    random = torch.manual_seed(0)
    chain: list[nn.Module] = []
    for layer in range(layers):
        convolution = nn.Conv2d(8 if layer else 3, 8, 3, padding=1)
        nn.init.normal_(convolution.weight, std=0.5, generator=random)
        chain += [convolution, nn.Tanh()]
    model = nn.Sequential(*chain, nn.Flatten(), nn.Linear(288, 4)).requires_grad_(False)
    return export_blocks(expand(trace(model, torch.randn(4, 3, 6, 6, generator=random)), max_span=1))


def test_rounding_that_a_deep_chain_magnifies_is_told_from_a_wrong_weight():
    exported = exported_chain(layers=26)
    golden = Verifier(exported).original_golden()
    assert golden.tolerance > 2e-3 * max(map(abs, golden.samples[0]))
    broken = with_damaged_block(exported, "o20", _largest_weight_turned)
    with pytest.raises(VerificationError, match=r"subnet o0 .* differs from torch"):
        Verifier(broken).original_golden()


def test_what_rounding_alone_decides_is_refused():
    with pytest.raises(VerificationError, match=r"subnet o0 .* differs from torch"):
        Verifier(exported_chain(layers=60)).original_golden()

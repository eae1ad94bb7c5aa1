"""Blocks for an NPU: which form is chosen, what is recorded, what is left out, by the maker's compiler and emulator."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from device_sdk.bundles.runnable import golden_inputs, matches
from device_sdk.fragments.composition import compose
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from packager.exporting.export import export_blocks
from packager.exporting.verification import SELF_TEST_BATCH, SELF_TEST_SEED
from packager.npu import child
from packager.npu.chips import CHIPS
from packager.npu.compiler import Compiler
from packager.npu.emulation import emulated
from packager.renditions.calibration import Calibration, relative_error
from packager.renditions.htp import OPSET_16, Trial, make_htp
from packager.renditions.int8 import cut_point_ranges
from packager.renditions.rendition_set import part_stretch
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace

pytestmark = pytest.mark.usefixtures("qnn")

V73, NO_HALF_PRECISION = CHIPS["v73"], CHIPS["qcs6490"]

# A compiler that aborts on models that hold a marked name, and is Qualcomm's for all others.
ABORTS = """
import json, os, pathlib, sys
sys.path.insert(0, {folder!r})
import child

class Requests:
    def __iter__(self):
        for line in sys.__stdin__:
            if {marked!r} in pathlib.Path(json.loads(line)["model"]).read_bytes():
                os.abort()
            yield line

sys.stdin = Requests()
child.main()
"""


class Unusual(nn.Module):
    """Blocks that are refused in part: no NPU has an inverse cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = nn.Conv2d(1, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.acos(torch.tanh(self.middle(x)))
        return self.head(torch.relu(x).mean((2, 3)))


@pytest.fixture(scope="module")
def compiler(qnn):
    with Compiler() as made:
        yield made


@pytest.fixture(scope="module")
def tiny_htp(qnn, tiny_exported, calibrate, tmp_path_factory):
    """The tiny supernet for one chip."""
    calibration = calibrate(tiny_exported.expansion)
    return make_htp(tiny_exported, calibration, SilentProgress(), tmp_path_factory.mktemp("c"), chips=[V73])


def test_every_block_has_a_record_and_an_error_that_the_emulator_measured(tiny_exported, tiny_htp):
    assert tiny_htp.own.keys() == tiny_exported.own.keys()
    assert (tiny_htp.runtime, tiny_htp.providers) == ("onnxruntime", ("QNNExecutionProvider",))
    assert not tiny_htp.notes
    for part in tiny_exported.own:
        assert 0 < tiny_htp.errors[part] < 0.05
        (record,) = tiny_htp.compiled[part]
        assert (record.chip, record.share) == ("v73", 1.0)


def test_golden_vectors_are_answers_of_the_emulator(tiny_exported, tiny_htp, compiler):
    reference = {block.id: block.start for block in tiny_exported.expansion.blocks}
    for part in ("o0", "o5"):
        graph = onnx.GraphProto.FromString(tiny_htp.own[part])
        cut = tiny_exported.expansion.cut_points[reference[part]]
        inputs = golden_inputs(cut, seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        answer = emulated(compiler, compose(part_stretch(tiny_exported, part, graph)), inputs[0], chip=V73)
        assert matches(tiny_htp.golden[part], [answer])


def test_the_whole_path_answers_as_torch_does(
    tiny_exported, tiny_htp, in_place_of, composed, compiler, digit_images, digits
):
    originals = [block.id for block in tiny_exported.expansion.originals]
    model = composed(in_place_of(tiny_exported, tiny_htp), originals)
    images = digit_images("search", 40)
    answer = emulated(compiler, model, images.numpy(), chip=V73)
    with torch.no_grad():
        expected = tiny_exported.expansion.traced.whole(images).numpy()
    assert (answer.argmax(1) == expected.argmax(1)).mean() >= 0.95


@pytest.fixture(scope="module")
def trial(tiny_exported, calibrate, compiler):
    """Trials of the tiny supernet's parts for a chip, and the features at a cut point."""
    calibration = calibrate(tiny_exported.expansion)
    ranges = cut_point_ranges(calibration, SilentProgress(), name="htp")
    features = {index: own for index, (own,) in calibration.features()}
    return partial(Trial, tiny_exported, compiler, quantization=ranges, batch=64), features


def test_sixteen_bits_lie_on_a_finer_grid_of_the_same_range_and_are_more_accurate(trial):
    of_chips, features = trial
    narrow, wide = (of_chips([V73]).of("o1", features[1], bits) for bits in (8, 16))
    assert wide.error < narrow.error / 4
    zero_points = [
        {numpy_helper.to_array(one).dtype for one in found.graph.initializer if one.name.endswith("_zero_point")}
        for found in (narrow, wide)
    ]
    assert np.dtype(np.uint8) in zero_points[0]
    assert np.dtype(np.uint16) in zero_points[1]
    assert np.dtype(np.uint8) not in zero_points[1]


def test_the_narrowest_accurate_form_is_taken(trial):
    of_chips, features = trial
    found = of_chips([V73]).best("o1", features[1])
    assert (found.form, found.share) == ("8 bits", 1.0)


def test_half_precision_is_the_fp32_fragment_and_a_chip_without_it_refuses(trial, tiny_exported):
    of_chips, features = trial
    found = of_chips([V73, NO_HALF_PRECISION]).of("o1", features[1], None)
    assert found.graph.SerializeToString(deterministic=True) == tiny_exported.own["o1"]
    half, without = found.record
    assert half.share == 1.0
    assert without.nodes == 0
    assert "Conv" in {one.operator for one in without.refused}
    assert found.share == 0.0
    assert found.golden is not None


def test_a_block_that_is_refused_in_part_keeps_its_rendition_and_the_record(digit_images, work):
    torch.manual_seed(0)
    images = digit_images("train", 32)
    traced = trace(Unusual().eval(), images[:8])
    exported = export_blocks(expand(traced, max_span=1))
    made = make_htp(exported, Calibration(exported.expansion, images), SilentProgress(), work, chips=[V73])
    refused = {one.operator for records in made.compiled.values() for record in records for one in record.refused}
    assert "Acos" in refused
    whole = [part for part, (record,) in made.compiled.items() if record.share == 1.0]
    assert whole
    assert len(whole) < len(made.own)


def test_a_block_that_crashes_the_compiler_is_left_out_and_the_others_are_made(tiny_exported, calibrate, work):
    program = ABORTS.format(folder=str(Path(child.__file__).parent), marked=b"o2/")
    made = make_htp(
        tiny_exported,
        calibrate(tiny_exported.expansion),
        SilentProgress(),
        work,
        chips=[V73],
        make_compiler=lambda: Compiler(command=(sys.executable, "-c", program)),
    )
    assert tiny_exported.own.keys() - made.own.keys() == {"o2"}
    assert made.notes == ("o2 has no htp rendition: v73: the compiler crashed (SIGABRT)",)


def test_where_eight_bits_are_too_few_sixteen_are_taken_and_raise_the_opset(
    tiny_exported, calibrate, compiler, digit_images, work
):
    calibration = calibrate(tiny_exported.expansion)
    made = make_htp(tiny_exported, calibration, SilentProgress(), work, chips=[NO_HALF_PRECISION], acceptable_error=0.0)
    assert made.opset == OPSET_16
    path = [block.id for block in tiny_exported.expansion.originals]
    types = {
        numpy_helper.to_array(tensor).dtype
        for part in path
        for tensor in onnx.GraphProto.FromString(made.own[part]).initializer
        if tensor.name.endswith("_zero_point")
    }
    assert np.dtype(np.uint16) in types
    fragments = (*made.shared.values(), *(made.own[part] for part in path))
    stretch = replace(tiny_exported.stretch(path), fragments=fragments, opset=made.opset)
    images = digit_images("search", 20)
    answer = emulated(compiler, compose(stretch), images.numpy(), chip=NO_HALF_PRECISION)
    on_cpu = OnnxRuntime(threads=1).load(stretch).run([images.numpy()])[0]
    with torch.no_grad():
        expected = tiny_exported.expansion.traced.whole(images).numpy()
    assert relative_error(answer, expected) < 0.01
    assert relative_error(on_cpu, expected) < 0.01

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.data.targets import TargetDataset
from device_sdk.errors import DataError, InputError
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import enumerate_subnets
from packager.errors import TraceError
from packager.exporting.export import export_blocks
from packager.exporting.verification import Verifier
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.inputs.two_stage import TwoStage
from packager.pipeline import package
from packager.supernet.expansion import expand
from packager.tasks import Segmentation
from packager.tracing.traced_model import trace

WIDTHS = (4, 6, 8)


def stage(inputs, outputs, *, stride):
    layers = []
    for number in range(2):
        layers += [
            nn.Conv2d(inputs if number == 0 else outputs, outputs, 3, stride if number == 0 else 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class Backbone(nn.Module):
    """Three stages of two convolutions; the end of each is put out."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTHS[0], 3, 1, 1), nn.ReLU())
        pairs = itertools.pairwise((WIDTHS[0], *WIDTHS))
        self.stages = nn.ModuleList(stage(a, b, stride=1 + (k > 0)) for k, (a, b) in enumerate(pairs))

    def forward(self, images):
        features = [self.stem(images)]
        for one in self.stages:
            features.append(one(features[-1]))
        return tuple(features[1:])


class Head(nn.Module):
    """A small feature pyramid: all features at the first one's resolution, then one 1×1 convolution."""

    def __init__(self):
        super().__init__()
        self.answer = nn.Conv2d(sum(WIDTHS), 5, 1)

    def forward(self, *features):
        size = features[0].shape[2:]
        return self.answer(torch.cat([functional.interpolate(one, size=size) for one in features], dim=1))


class Inside(Backbone):
    """Puts out what is not at a cut point: the first convolution of a residual block."""

    def forward(self, images):
        stem = self.stem(images)
        inner = self.stages[0](stem)
        return inner, self.stages[2](self.stages[1](inner + stem))


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(0)
    return trace(TwoStage(Backbone(), Head()), torch.rand(2, 3, 16, 16))


@pytest.fixture(scope="module")
def exported(traced):
    return export_blocks(expand(traced, max_span=3, identity=True))


def test_the_head_is_the_last_block_and_what_it_reads_are_cut_points(traced):
    shapes = [spec.shape for spec in traced.tensors]
    assert [shapes[tap] for tap in traced.taps] == [(4, 16, 16), (6, 8, 8)]
    assert shapes[-2:] == [(8, 4, 4), (5, 16, 16)]
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(traced.features(images)[-1], traced.whole(images))


def test_gamma_joins_no_cells_over_what_the_head_reads():
    joined = trace(TwoStage(Backbone(), Head()), torch.rand(2, 3, 16, 16), gamma=1.0)
    assert [joined.tensors[tap].shape for tap in joined.taps] == [(4, 16, 16), (6, 8, 8)]


def test_no_block_jumps_over_what_the_head_reads(exported):
    supernet = exported.expansion.supernet()
    taps = exported.expansion.traced.taps
    assert [cut.index for cut in supernet.cut_points if cut.mandatory] == [*taps]
    assert exported.expansion.added
    for block in exported.expansion.added:
        assert not any(block.start < tap < block.end for tap in taps)
    assert all(
        {*taps} <= {0, *(block.end for _, block in supernet.walk(path))}
        for path in enumerate_subnets(supernet, limit=1000)
    )


def test_every_subnet_answers_alike_in_torch_composed_and_block_by_block(exported):
    runtime, expansion = OnnxRuntime(threads=1), exported.expansion
    supernet = expansion.supernet()
    subnets = list(enumerate_subnets(supernet, limit=1000))
    for number, batch in itertools.product(range(0, len(subnets), 5), (1, 3)):
        subnet, images = subnets[number], torch.rand(batch, 3, 16, 16)
        with torch.no_grad():
            expected = expansion.run(subnet, images).numpy()
        composed = runtime.load(exported.stretch(subnet.block_ids)).run([images.numpy()])
        live = [images.numpy()]
        for block in subnet.block_ids:
            live = runtime.load(exported.stretch([block])).run(live)
        for found in (composed, live):
            assert len(found) == 1
            np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_blocks_behind_a_tap_are_verified_with_all_that_is_live(exported):
    verifier = Verifier(exported)
    for block in exported.expansion.blocks:
        golden = verifier.golden([block.id])
        last = block.end == len(exported.expansion.cut_points) - 1
        assert len(golden.samples) == (
            1 if last else 1 + sum(tap < block.end for tap in exported.expansion.traced.taps)
        )
    verifier.original_golden()


def test_a_feature_where_the_backbone_cannot_be_cut_is_refused():
    torch.manual_seed(0)
    with pytest.raises(TraceError, match="cannot be cut"):
        trace(TwoStage(Inside(), Head()), torch.rand(2, 3, 16, 16))


def test_several_outputs_without_a_head_are_refused_with_a_hint():
    with pytest.raises(TraceError, match="3 outputs") as caught:
        trace(Backbone(), torch.rand(2, 3, 16, 16))
    assert "TwoStage" in str(caught.value.hint)


@pytest.mark.slow
def test_a_segmentation_model_is_packaged_and_answers_on_the_device(tmp_path, traced):
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (24, 16, 16, 3), dtype=np.uint8)
    maps = (images[..., 0] // 64).astype(np.uint8)
    data = TargetDataset(images, maps, tuple("abcde"), tuple(map(str, range(24))))
    preprocessing = Preprocessing(scale=1 / 255, mean=(0.5,) * 3, std=(0.25,) * 3)
    model = LoadedModel(traced.whole, (3, 16, 16), preprocessing, None, "pyramid", None, "test")
    recipe = Recipe(steps=6, batch=8, variants=0, renditions=("fp32", "int8"), input_sizes=((12, 12), (8, 8)))
    job = Job(model, data, "maps", data, "maps", recipe, "pyramid", task=Segmentation())
    folder = package(job, tmp_path / "bundle").folder
    with AdaptiveModel.open(folder, state_folder=tmp_path / "state") as opened:
        inputs = opened.prepare(images[:3])
        with torch.no_grad():
            expected = traced.whole(torch.from_numpy(inputs)).numpy()
        np.testing.assert_allclose(opened.infer(inputs).output, expected, atol=1e-4)
        assert opened.bundle.manifest.task.kind == "segmentation"
        assert opened.bundle.manifest.metrics.tune_steps > 0
        with pytest.raises(InputError, match="maps of class indices"):
            opened.adapt(images, Goal(latency_ratio=2.0), labels=[0] * 24)
        supernet = opened.bundle.supernet
        assert [one.size for one in supernet.input_sizes] == [(12, 12), (8, 8)]
        assert [one.shapes[-1] for one in supernet.input_sizes] == [((5, 12, 12),), ((5, 8, 8),)]
        for block in supernet.blocks:
            assert [one.name for one in block.renditions] == ["fp32", "int8"], block.id
            assert all(one.any_size for one in block.renditions), block.id
        found = opened.adapt(images, Goal(latency_ratio=2.0), labels=maps)
        assert 0 < found.expected.accuracy < 1
        assert opened(images[:2]).output.shape[:2] == (2, 5)


def test_answers_that_do_not_suit_the_task_are_refused(tmp_path, traced):
    data = TargetDataset(np.zeros((4, 16, 16, 3), np.uint8), np.zeros((4, 16, 16), np.uint8), ("a", "b"), tuple("wxyz"))
    model = LoadedModel(
        traced.whole, (3, 16, 16), Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3), None, "p", None, "test"
    )
    job = Job(model, data, "maps", data, "maps", Recipe(steps=1), "pyramid", task=Segmentation())
    with pytest.raises(DataError, match="2 classes"):
        package(job, tmp_path / "bundle")

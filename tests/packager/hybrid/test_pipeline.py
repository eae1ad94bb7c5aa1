"""Hybrid training end to end: what is trained, what stays, how the two bundles are bound, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid_pairs import hybrid_plan, require_pair
from device_sdk.bundles.manifest import encode_manifest
from device_sdk.errors import BundleError, DataError, UsageError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.deciding.decider_fitting import fit_pool
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Ask, Logistic
from packager.commands.inspecting import describe_bundle
from packager.errors import ResumeError, WeightsError
from packager.hybrid import pipeline
from packager.hybrid.job import HybridRecipe
from packager.hybrid.path_network import PathNetwork, as_part
from packager.hybrid.pipeline import package_hybrid
from packager.hybrid.samples import HybridBatches


@pytest.fixture(scope="session")
def trained(make_job, tmp_path_factory):
    """A hybrid of which both networks were trained."""
    out = tmp_path_factory.mktemp("trained") / "hybrid"
    return make_job(train="rbg"), package_hybrid(make_job(train="rbg"), out, save_weights=out.parent / "weights")


def blobs_of_originals(folder):
    bundle = Bundle.open(folder)
    return {edge.block: bundle.manifest.supernet().rendition(edge).blob for edge in bundle.supernet.original.edges}


def test_both_bundles_run_and_are_bound_to_each_other(trained):
    _, made = trained
    base, global_ = Bundle.open(made.base), Bundle.open(made.global_)
    require_pair(base, global_)
    for bundle in (base, global_):
        bundle.verify()
        run_self_test(Workspace(bundle, OnnxRuntime(threads=1)))
    plan = hybrid_plan(base)
    assert isinstance(plan.hard, Ask)
    assert isinstance(plan.hard.decider, Logistic)
    assert plan.hard.server.model == "strong@hybrid:images"
    assert plan.hard.server.digest == global_.digest


@pytest.mark.slow
def test_copies_stand_beside_originals_that_are_byte_identical_to_a_bundle_without_copies(trained, make_job, tmp_path):
    _, made = trained
    plain = package_hybrid(make_job(train="r"), tmp_path / "plain")
    for part in ("base", "global_"):
        found = Bundle.open(getattr(made, part)).manifest
        assert blobs_of_originals(getattr(made, part)) == blobs_of_originals(getattr(plain, part))
        for block in found.blocks:
            if block.id.startswith("c"):
                assert (block.copied_from, block.end) == (f"o{block.start}", block.start + 1)
        assert not any(block.copied_from for block in Bundle.open(getattr(plain, part)).manifest.blocks)


def test_a_bundle_answers_along_its_path_as_the_trained_copies_do(trained, models, noise):
    job, made = trained
    from packager.inputs.weights import read_state_dict

    for folder, own, model in ((made.base, job.base, models[0]), (made.global_, job.global_, models[1])):
        bundle = Bundle.open(folder)
        path = bundle.manifest.hybrid.subnet
        if not any(edge.block.startswith("c") for edge in path.edges):
            continue
        weights = read_state_dict(folder.parent.parent / "weights" / f"{folder.name}.safetensors")
        network = PathNetwork(as_part(own, None, weights, learns=False).expansion, torch.device("cpu"))
        images = noise(5, 1, 8, 8)
        expected = network.answers(network.head(images))
        (found,) = OnnxRuntime(threads=1).load(bundle.stretch(path.edges)).run([images.numpy()])
        np.testing.assert_allclose(found, expected, atol=1e-4)
        with torch.no_grad():
            assert not np.allclose(found, model.module(images).numpy(), atol=1e-4)


def test_only_copies_learn(make_job):
    job = make_job(train="rbg", global_blocks=2)
    for own, copied in ((job.base, None), (job.global_, 2)):
        expansion = as_part(own, copied, None, learns=True).expansion
        network = PathNetwork(expansion, torch.device("cpu"))
        before = {block.id: [p.clone() for p in block.module.parameters()] for block in expansion.originals}
        network.train(True)
        images = torch.from_numpy(own.prepared(count=4))
        network.tail(network.head(images)).square().sum().backward()
        assert all(parameter.grad is None for block in expansion.originals for parameter in block.module.parameters())
        assert any(bool(parameter.grad.abs().sum() > 0) for parameter in network.parameters)
        for block in expansion.originals:
            assert all(map(torch.equal, before[block.id], block.module.parameters()))


@pytest.mark.slow
def test_a_part_that_does_not_learn_has_no_copies(make_job, out):
    made = package_hybrid(make_job(train="rb", steps=6), out)
    path = Bundle.open(made.global_).manifest.hybrid.path
    assert all(edge.startswith("o") for edge in path)


class _Killed(Exception):
    """The process dies here."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "dies_at"), [("for_base", 4), pytest.param("for_global", 0, marks=pytest.mark.slow)]
)
def test_a_run_that_was_killed_ends_with_the_same_bundles(make_job, out, tmp_path, trained, learner, dies_at):
    class Dying(HybridBatches):
        pass

    def dying(self, step, **choices):
        if step == dies_at:
            raise _Killed
        return getattr(HybridBatches, learner)(self, step, **choices)

    setattr(Dying, learner, dying)
    job = make_job(train="rbg")
    with pytest.raises(_Killed):
        package_hybrid(job, out, batches=Dying)
    assert (out.with_name("hybrid.work")).exists()
    package_hybrid(job, out)
    _, made = trained
    for part in ("base", "global"):
        assert (out / part / "manifest.json").read_bytes() == (made.base.parent / part / "manifest.json").read_bytes()
    assert not out.with_name("hybrid.work").exists()


@pytest.mark.slow
def test_a_part_has_the_settings_of_its_own_recipe(make_job, out):
    made = package_hybrid(make_job(train="rb", steps=4, base={"renditions": ["fp32", "int8"], "max_span": 2}), out)
    bundle = Bundle.open(made.base)
    names = {rendition.name for block in bundle.manifest.blocks for rendition in block.renditions}
    assert names == {"fp32", "int8"}
    assert {block.kind for block in bundle.manifest.blocks} == {"original", "shrunk"}  # spans need trained weights
    described = describe_bundle(bundle)["hybrid"]
    assert described == {"role": "base", "path": list(bundle.manifest.hybrid.path), "partner": "strong"}
    assert Bundle.open(made.global_).manifest.provenance.recipe["hybrid.train"] == "rb"


def test_the_pool_of_both_answers_is_that_of_images_that_neither_learned_from(trained):
    job, made = trained
    report = json.loads((made.base.parent / "hybrid.json").read_text())
    assert report["pool"] == (None if made.pool is None else made.pool.__dict__)
    logits, labels = [], []
    for part, own in ((made.base, (job.base_routing, job.base)), (made.global_, (job.global_routing, job.global_))):
        bundle = Bundle.open(part)
        stretch = OnnxRuntime(threads=1).load(bundle.stretch(bundle.manifest.hybrid.subnet.edges))
        logits.append(np.concatenate([stretch.run([one.prepared()])[-1] for one in own]))
        labels = np.concatenate([one.validation.labels for one in own])
    expected = fit_pool(logits[0], logits[1], labels)
    assert (expected is None) == (made.pool is None)
    if expected is not None:
        assert made.pool.device == pytest.approx(expected.device, rel=1e-3)
        assert made.pool.server == pytest.approx(expected.server, rel=1e-3)


def test_distortions_show_errors_of_a_network_that_knows_its_images(make_job):
    job = make_job(train="rbg")
    network = job.global_.model.module
    right = []
    for strength in (0.0, 1.0):
        images, labels = zip(*[job.global_.batches(distortion=strength).batch(step) for step in range(8)], strict=True)
        right.append(float((network(torch.cat(images)).argmax(1) == torch.cat(labels)).float().mean()))
    assert right[1] < right[0] - 0.05


def test_the_same_job_again_finds_its_hybrid(trained):
    job, made = trained
    again = package_hybrid(job, made.base.parent)
    assert not again.fresh
    assert again.accuracy == made.accuracy


def test_another_job_does_not_take_the_folder(trained, make_job):
    _, made = trained
    with pytest.raises(ResumeError, match="belongs to another run"):
        package_hybrid(make_job(train="rbg", coverage=0.5), made.base.parent)


@pytest.mark.slow
def test_bundles_of_two_runs_are_not_taken_for_a_pair(trained, make_job, tmp_path):
    _, made = trained
    other = package_hybrid(make_job(train="rbg", steps=30, seed=9), tmp_path / "other")
    with pytest.raises(BundleError):
        require_pair(Bundle.open(made.base), Bundle.open(other.global_))
    with pytest.raises(BundleError, match="not base and global"):
        require_pair(Bundle.open(made.global_), Bundle.open(made.base))


def test_a_base_whose_path_was_exchanged_is_no_longer_bound(trained, tmp_path):
    _, made = trained
    folder = tmp_path / "base"
    shutil.copytree(made.base, folder)
    bundle = Bundle.open(folder)
    hybrid = bundle.manifest.hybrid
    original = tuple(map(str, bundle.supernet.original.edges))
    assert hybrid.path != original
    changed = msgspec.structs.replace(bundle.manifest, hybrid=msgspec.structs.replace(hybrid, path=original))
    (folder / "manifest.json").write_bytes(encode_manifest(changed))
    with pytest.raises(BundleError, match="not that of its path"):
        require_pair(Bundle.open(folder), Bundle.open(made.global_))


@pytest.mark.slow
@pytest.mark.parametrize("coverage", [0.0, 1.0])
def test_all_or_nothing_may_be_sent(make_job, out, coverage):
    made = package_hybrid(make_job(train="r", coverage=coverage), out)
    decider = hybrid_plan(Bundle.open(made.base)).hard.decider
    assert decider.threshold == 0.0 if coverage else decider.threshold > 1.0


def test_classes_that_differ_are_refused(make_job, out):
    job = make_job()
    other = replace(job.global_, training=replace(job.global_.training, class_names=tuple("abcdefghij")))
    with pytest.raises(DataError, match="different classes"):
        package_hybrid(replace(job, global_=other), out)


def test_samples_of_one_class_are_refused(make_job, out, digits):
    job = make_job()
    sevens = digits("search")
    keep = sevens.labels == 7
    only = replace(
        job.base_routing.validation,
        images=sevens.images[keep],
        labels=sevens.labels[keep],
        names=tuple(name for name, kept in zip(sevens.names, keep, strict=True) if kept),
    )
    routing = [replace(one, validation=only) for one in (job.base_routing, job.global_routing)]
    with pytest.raises(DataError, match="all of one class"):
        package_hybrid(replace(job, base_routing=routing[0], global_routing=routing[1]), out)


def test_unlabelled_images_are_refused(make_job, out):
    job = make_job()
    unknown = replace(job.base.training, labels=np.full_like(job.base.training.labels, -1))
    parts = [replace(one, training=unknown) for one in (job.base, job.global_)]
    with pytest.raises(DataError, match="no label"):
        package_hybrid(replace(job, base=parts[0], global_=parts[1]), out)


def test_weights_of_another_model_are_refused(make_job, out):
    job = replace(make_job(), global_weights={"c9.fc.weight": torch.zeros(3, 3)})
    with pytest.raises(WeightsError, match="not those of copies"):
        package_hybrid(job, out)


def test_minutes_that_are_too_few_are_refused_with_the_least(make_job, out):
    with pytest.raises(UsageError, match="too few") as refused:
        package_hybrid(make_job(steps=None, budget_minutes=0.0001), out)
    assert "minutes" in refused.value.hint


@pytest.mark.slow
def test_minutes_are_kept(make_job, out):
    ticks = iter(np.arange(0.0, 1e6, 0.04))
    limits = pipeline.Limits(clock=lambda: float(next(ticks)))
    made = package_hybrid(make_job(train="rb", steps=None, budget_minutes=1.0), out, limits=limits)
    assert made.seconds <= 60


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"steps": None}, "needs steps or budget_minutes"),
        ({"steps": 1, "budget_minutes": 1.0}, "needs steps or budget_minutes"),
        ({"steps": 1, "coverage": 1.5}, "coverage 1.5"),
        ({"steps": 1, "coverage": float("nan")}, "coverage nan"),
        ({"steps": 1, "rounds": 0}, "rounds is below 1"),
        ({"steps": 1, "base_rate": 0.0}, "base_rate"),
        ({"steps": 1, "distortion": 2.0}, "distortion is not between 0 and 1"),
        ({"steps": 1, "base": {"copied": 3}}, "cannot set copied"),
    ],
)
def test_a_recipe_out_of_range_is_refused(choices, complaint):
    with pytest.raises(UsageError, match=complaint):
        HybridRecipe(**choices)

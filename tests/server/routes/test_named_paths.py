"""A device that plans with a server's named paths: real HTTP, the tiny bundle at both ends."""

from __future__ import annotations

import dataclasses
import json
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid import path_digest
from device_sdk.bundles.manifest import Hybrid, encode_manifest
from device_sdk.commands.adapt_command import adapt
from device_sdk.errors import BudgetError, BundleError, TransferError, UsageError
from device_sdk.offload.remote_model import RemoteModel, path_model
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.hybrid.joint_search import JointSettings
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Ask, Entropy, Plan, RemoteRef, encode_plan

ALL_HARD = Entropy(-1.0)


@pytest.fixture
def other_path(tiny_bundle):
    return next(
        one
        for one in enumerate_subnets(tiny_bundle.supernet, limit=64)
        if one != tiny_bundle.supernet.original and not one.input_size
    )


@pytest.fixture
def remote(server):
    return RemoteModel(server=server.url, model="tiny:images", privacy="inputs", timeout_s=20.0)


@pytest.fixture
def home(remote):
    """The server that has the same bundle."""
    return dataclasses.replace(remote, model="tiny:tail")


@pytest.fixture
def model(tiny, tmp_path):
    with AdaptiveModel.open(tiny.folder, trust=tiny.public_key, state_folder=tmp_path / "state") as opened:
        yield opened


def test_a_device_asks_for_the_path_that_its_plan_names(model, tiny, tiny_bundle, remote, other_path):
    name = path_model("tiny", other_path, images=True)
    model.remote.connect(dataclasses.replace(remote, model=name))
    model.use(Plan(tiny_bundle.supernet.original, hard=Ask(ALL_HARD, RemoteRef(name, tiny_bundle.digest))))
    answer = model(tiny.images[:5])
    assert set(answer.source) == {SERVER}
    stretch = OnnxRuntime(threads=1).load(tiny_bundle.stretch(other_path.edges))
    np.testing.assert_allclose(answer.output, stretch.run([model.prepare(tiny.images[:5])])[0], atol=1e-5)


def test_an_unknown_path_is_not_found(server):
    reply = server.ask(f"/v2/models/{quote('tiny@o0,nothing', safe='')}")
    assert reply.status == 404
    assert "there is no model" in reply.json()["error"]


def hybrid(model, tiny, goal, *remotes, **joint):
    for one in remotes:
        model.remote.connect(one)
    settings = AdaptationSettings(joint=JointSettings(**joint))
    return model.adapt(tiny.images, goal, {"hybrid"}, tiny.labels, settings=settings)


def test_a_device_plans_base_and_global_together(model, tiny, home):
    macs = sum(block.macs for _, block in model.bundle.supernet.walk(model.bundle.supernet.original))
    found = hybrid(model, tiny, Goal(macs=1.5 * macs), home, generations=1, children=2)
    assert model.plan == found.plan
    assert 0 < found.expected.share_asked <= 1
    assert found.judged == 20
    sources = model(tiny.images).source
    assert sources.count(SERVER) / len(sources) == pytest.approx(found.expected.share_asked, abs=0.2)


def test_the_latency_counts_the_server_s_own_profile(model, tiny, home):
    assert hybrid(model, tiny, Goal(latency_ms=1e6), home, generations=0).expected.latency_ms > 0


def test_another_model_of_a_server_may_be_the_global_one(model, tiny, home, remote):
    found = hybrid(model, tiny, Goal(latency_ms=1e6), home, remote, generations=0)
    assert model.plan.hard.server.digest == model.bundle.digest
    assert set(model(tiny.images[:3]).source) == {SERVER}
    assert found.expected.share_asked == 1.0


def test_the_macs_of_a_server_s_model_are_unknown(model, tiny, home, remote):
    before = model.plan
    with pytest.raises(UsageError, match="MACs of tiny:images are unknown"):
        hybrid(model, tiny, Goal(macs=1e9), home, remote)
    assert model.plan == before


def test_a_model_that_may_not_be_sent_inputs_cannot_be_the_global_one(model, tiny, home, remote):
    silent = dataclasses.replace(remote, privacy="never")
    with pytest.raises(TransferError):
        hybrid(model, tiny, Goal(latency_ms=1e6), home, silent)


@pytest.mark.parametrize("goal", [Goal(accuracy=0.5), Goal(latency_ms=9.0, macs=1e9)])
def test_a_hybrid_keeps_one_limit(model, tiny, home, goal):
    with pytest.raises(BudgetError, match="a hybrid keeps one limit"):
        hybrid(model, tiny, goal, home)


def test_the_command_says_what_it_chose(tiny, tmp_path, server):
    import zipfile
    from io import BytesIO

    from PIL import Image

    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as files:
        for number, (image, label) in enumerate(zip(tiny.images, tiny.labels, strict=True)):
            data = BytesIO()
            Image.fromarray(image).save(data, "PNG")
            files.writestr(f"{('blue', 'green', 'red')[label]}/{number}.png", data.getvalue())
    arguments = [str(tiny.folder), "--trust", str(tiny.public_key), "--data", str(archive), "--server", server.url]
    arguments += ["--consider", "hybrid", "--macs", "100", "--state", str(tmp_path / "own"), "--json"]
    refused = CliRunner().invoke(adapt, arguments)
    assert "may be sent nothing" in str(refused.exception)
    result = CliRunner().invoke(adapt, [*arguments, "--privacy", "inputs"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["expected"]["share_asked"] == said["hybrid"]["pair"]["sent"] > 0
    assert "tiny@" in said["plan"]


def test_a_bundle_that_was_trained_for_a_hybrid_uses_its_plan(tiny, tiny_bundle, serve, tmp_path, other_path):
    path, digest = tuple(map(str, other_path.edges)), path_digest(tiny_bundle.manifest, other_path)
    served = tiny.copy_to(
        tmp_path / "bundles" / "big", hybrid=msgspec.to_builtins(Hybrid("global", path, "tiny", digest))
    )
    plan = Plan(other_path, hard=Ask(ALL_HARD, RemoteRef("tiny@hybrid:images", Bundle.open(served).digest)))
    manifest = msgspec.structs.replace(
        tiny_bundle.manifest, hybrid=Hybrid("base", path, "tiny", digest, encode_plan(plan).decode())
    )
    own = tiny.copy_to(tmp_path / "own")
    (own / "manifest.json").write_bytes(encode_manifest(manifest))
    (own / "manifest.sig").unlink()
    running = serve(tmp_path / "bundles")
    with AdaptiveModel.open(own, state_folder=tmp_path / "device") as model:
        model.remote.use_hybrid(RemoteModel(server=running.url, model="any", privacy="inputs", timeout_s=20.0))
        assert set(model(tiny.images[:3]).source) == {SERVER}


def test_a_bundle_without_a_hybrid_has_no_plan_for_one(model, remote):
    with pytest.raises(BundleError, match="not the base of a hybrid"):
        model.remote.use_hybrid(remote)

"""A device that downloads and loads the head of a split plan only, against a real server."""

from __future__ import annotations

import json

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.execution.part_sizes import part_sizes
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import ABSTAINED, FALLBACK, SERVER
from device_sdk.session.heads import plan_head
from device_sdk.signing import signatures
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import ExitChoice, Plan
from pathweave.server_process import ServerProcess, running_server
from pathweave.throttled_proxy import slow_uplink
from tests.device_sdk.heavy_bundle import write_heavy_bundle
from tests.device_sdk.tiny_bundle import draw_images
from tests.end_to_end.heads.conftest import CUT, HEAD_BLOCKS, Served, write_bundle

IMAGES, LABELS = draw_images(12, seed=5)


def blobs_of(bundle, blocks, exits=()):
    parts = [one for one in bundle.manifest.blocks if one.id in blocks]
    parts += [one for one in bundle.manifest.exits if one.id in exits]
    return {name for one in parts for name in (*one.renditions[0].shared, one.renditions[0].blob)}


def test_only_the_blobs_of_the_head_are_fetched_and_the_server_runs_the_tail(served, opened, stored):
    with AdaptiveModel.open(served.folder, state_folder=served.folder.parent / "whole") as whole:
        expected = whole(IMAGES).labels
    with opened(plan=served.plan()) as model:
        assert stored() == blobs_of(served.bundle, HEAD_BLOCKS)
        assert model.exits.held == ()
        model.remote.connect(served.tails())
        answer = model(IMAGES)
        assert set(answer.source) == {SERVER}
        assert answer.labels == expected
    assert stored() == blobs_of(served.bundle, HEAD_BLOCKS)


def test_the_part_opens_again_with_its_plan_and_fetches_nothing_more(served, opened, stored):
    plan = served.plan("exit")
    opened(plan=plan).close()
    before = stored()
    assert before == blobs_of(served.bundle, HEAD_BLOCKS, ("x2-pooled",))
    with opened() as model:
        assert model.plan == plan
        assert model.exits.held == ("x2-pooled",)
    assert stored() == before
    with opened(threads=2) as model:  # for which no plan was kept: that of the part stands in
        assert model.plan == plan
    assert stored() == before


def test_the_rest_is_fetched_when_the_whole_is_asked_for(served, opened, stored):
    opened(plan=served.plan()).close()
    with opened(plan="whole") as model:
        assert stored() == set(served.bundle.manifest.blobs())
        model.use(Plan(model.bundle.supernet.original))
        assert set(model(IMAGES).source) == {"subnet"}
    with opened() as model:
        assert model.bundle.part.is_whole


@pytest.mark.parametrize("answers_some", [False, True], ids=["the exit only falls back", "it answers some"])
def test_without_the_server_the_last_exit_before_the_cut_answers(served, tmp_path, answers_some):
    public, private = write_bundle(tmp_path)
    server = ServerProcess(tmp_path / "tiny", data=tmp_path / "data")
    own = Served(server.url, public, private, tmp_path / "tiny")
    try:
        plan = own.plan("exit")
        with AdaptiveModel.open(own.address, trust=public, state_folder=tmp_path / "state", plan=plan) as model:
            model.use(Plan(plan.subnet, exits=(ExitChoice("x2-pooled", 0.0),)))
            at_exit = model(IMAGES)
            threshold = float(np.median(at_exit.confidence)) if answers_some else None
            model.use(own.plan("exit", threshold=threshold))
            model.remote.connect(own.tails(timeout_s=2.0))
            assert set(model(IMAGES).source) == ({SERVER, "exit x2-pooled"} if answers_some else {SERVER})
            server.kill()
            answer = model(IMAGES)
            assert set(answer.source) == ({FALLBACK, "exit x2-pooled"} if answers_some else {FALLBACK})
            np.testing.assert_allclose(answer.output, at_exit.output, atol=1e-5)
    finally:
        server.stop()


def test_without_the_server_a_plan_that_abstains_gives_no_answer(served, tmp_path):
    public, private = write_bundle(tmp_path)
    server = ServerProcess(tmp_path / "tiny", data=tmp_path / "data")
    own = Served(server.url, public, private, tmp_path / "tiny")
    try:
        with AdaptiveModel.open(own.address, trust=public, state_folder=tmp_path / "state", plan=own.plan()) as model:
            assert set(model(IMAGES).source) == {ABSTAINED}  # nothing is connected yet
            model.remote.connect(own.tails(timeout_s=2.0))
            assert set(model(IMAGES).source) == {SERVER}
            server.kill()
            answer = model(IMAGES)
            assert set(answer.source) == {ABSTAINED}
            assert set(answer.labels) == {None}
            assert np.isnan(answer.output).all()
            with pytest.raises(UsageError, match="answers nothing here without its server"):
                model(IMAGES[0], deadline_ms=1000)
        blobs = {path.name for path in (tmp_path / "state" / "store" / "blobs").iterdir()}
        assert blobs == blobs_of(own.bundle, HEAD_BLOCKS)
        with AdaptiveModel.open(own.address, trust=public, state_folder=tmp_path / "state") as again:  # still killed
            assert set(again(IMAGES).source) == {ABSTAINED}
    finally:
        server.stop()


def test_what_needs_blocks_that_are_not_here_is_refused_in_one_line(served, opened):
    said = rf"not here: this device holds only what its plan needs, up to cut point {CUT}"
    with opened(plan=served.plan("exit")) as model:
        original = Plan(model.bundle.supernet.original)
        for refused in (
            lambda: model.adapt(IMAGES, Goal(latency_ms=100), labels=LABELS),
            lambda: model.adapt(IMAGES, Goal(latency_ms=100, coverage=0.9), {"abstain"}, LABELS),
            lambda: model.live.start("latency", goal=Goal(latency_ms=100)),
            lambda: model.exits.place(),
            lambda: model.use(original),
        ):
            with pytest.raises(UsageError, match=said) as caught:
                refused()
            assert "\n" not in str(caught.value)
            assert "--whole" in caught.value.hint
        assert model.plan == served.plan("exit")


def test_exits_before_the_cut_are_fetched_on_demand_and_those_behind_it_are_refused(served, opened, stored):
    with opened(plan=served.plan(position=2)) as model:
        model.exits.hold(["x1-pooled"])
        assert stored() == blobs_of(served.bundle, HEAD_BLOCKS[:2], ("x1-pooled",))
        with pytest.raises(UsageError, match=r"exit x3-pooled at cut point 3 needs blocks that are not here"):
            model.exits.hold(["x3-pooled"])
        assert model.exits.held == ("x1-pooled",)
    with opened() as model:
        assert model.exits.held == ("x1-pooled",)
        assert model.plan == served.plan(position=2)


def test_deadlines_and_anytime_runs_end_with_the_last_exit_before_the_cut(served, opened):
    with opened(plan=served.plan("exit")) as model:
        assert set(model(IMAGES[0], deadline_ms=5000).source) == {"exit x2-pooled"}
        with model.stream(IMAGES[0]) as running:
            assert running.wait().source == ("exit x2-pooled",)


def test_a_model_larger_than_the_memory_cap_is_split_so_that_its_head_stays_loaded(tmp_path):
    """4.6 MB of weights under a cap of 3 MB: the head never leaves, and what is loaded keeps to the cap."""
    bundle = write_heavy_bundle(tmp_path / "heavy", blocks=6, channels=160, colours=3, exits=[1, 3])
    with running_server(tmp_path / "heavy", data=tmp_path / "data") as url:
        address = f"{url}/v1/bundles/{bundle.manifest.name}"
        state = tmp_path / "state"
        decision = plan_head(address, trust=None, memory_mb=2.5, device_factor=20, uplink_mbps=50, state_folder=state)
        assert not list((state / "store").glob("blobs/*"))  # the manifest came alone
        plan = decision.plan
        assert plan.is_head
        assert 0 < decision.best.device_bytes <= 2.5e6
        with AdaptiveModel.open(address, trust=None, plan=plan, memory_cap_mb=4, state_folder=state) as model:
            sizes = part_sizes(model.bundle, plan)
            assert sizes.stored_bytes + sizes.absent_bytes == sum(bundle.blob_sizes().values())
            assert sizes.resident_bytes < 4e6 < part_sizes(bundle, Plan(plan.subnet)).resident_bytes
            name = f"{bundle.manifest.name}:tail"
            model.remote.connect(RemoteModel(server=url, model=name, privacy="activations", timeout_s=5.0))
            side = bundle.manifest.cut_points[0].tensors[0].shape[1]
            image = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
            assert model(image).source == (SERVER,)
            loads = model._in_use.running().loaded.page_loads
            for _ in range(3):
                model(image)
            assert model._in_use.running().loaded.page_loads == loads
            assert model._in_use.cap.peak_bytes <= 4e6


def test_a_new_version_brings_the_same_head_and_no_more(tmp_path):
    public, private = write_bundle(tmp_path)
    state = tmp_path / "state"
    with running_server(tmp_path / "tiny", data=tmp_path / "data") as url, slow_uplink(url, mbps=100) as (fixed, proxy):
        own = Served(fixed, public, private, tmp_path / "tiny")
        plan = own.plan("exit")
        AdaptiveModel.open(own.address, trust=public, state_folder=state, plan=plan).close()
        manifest = json.loads((own.folder / "manifest.json").read_bytes()) | {"version": 2}
        data = json.dumps(manifest).encode()
        (own.folder / "manifest.json").write_bytes(data)
        (own.folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=private))
        with running_server(tmp_path / "tiny", data=tmp_path / "again") as new_url:
            proxy.forward_to(new_url)
            with AdaptiveModel.open(own.address, trust=public, state_folder=state) as model:
                assert model.bundle.manifest.version == 2
                assert model.plan.split.server.digest == model.bundle.digest != plan.split.server.digest
                model.remote.connect(own.tails())
                assert set(model(IMAGES).source) == {SERVER}
    assert {path.name for path in (state / "store" / "blobs").iterdir()} == blobs_of(
        own.bundle, HEAD_BLOCKS, ("x2-pooled",)
    )

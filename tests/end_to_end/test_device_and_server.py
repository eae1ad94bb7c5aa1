"""A device and a server as they are used: real processes, the demo's bundle, HTTP between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.errors import ProtocolError, RefusedError, SignatureError, TransferError, UsageError
from device_sdk.logs.adaptation_log import Delivered, Escalating, Splitting, read_log
from device_sdk.offload.remote_model import LogarithmicPool, RemoteModel
from device_sdk.policies.measured_splits.decision import SplitDecision
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import ABSTAINED, FALLBACK, SERVER
from device_sdk.signing.signatures import new_key_pair
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
)
from pathweave.server_process import running_server

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 10.0  # a busy machine answers late


def split_at(model, position):
    """A plan of the full model that goes on at the server from ``position``."""
    supernet = model.bundle.supernet
    tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
    server = RemoteRef("digits:tail", model.bundle.digest)
    return Plan(supernet.original, split=Split(position, (8,), tail, server))


@pytest.fixture(scope="module")
def server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(demo_folder / "bundles" / "digits", data=tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="module")
def public_key(demo_folder: Path) -> Path:
    return demo_folder / "demo.pub"


@pytest.fixture(scope="module")
def profiled(demo_folder: Path, public_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a device that has profiled the bundle: every time anew that would take seconds."""
    folder = tmp_path_factory.mktemp("profiled")
    with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=folder) as model:
        model.profile()
    return folder


@pytest.fixture
def state(profiled: Path, tmp_path: Path) -> Path:
    """A copy of its own."""
    return shutil.copytree(profiled, tmp_path / "state")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return load_dataset("digits#report").images[:60]


@pytest.fixture(scope="module")
def full_answers(demo_folder: Path, images: np.ndarray) -> np.ndarray:
    """What the full model answers, run here."""
    from device_sdk.session.samples import SampleChecker

    bundle = Bundle.open(demo_folder / "bundles" / "digits")
    tensor = SampleChecker(bundle.manifest).prepare(images)
    return OnnxRuntime(threads=1).load(bundle.stretch(bundle.supernet.original.edges)).run([tensor])[-1]


def cheapest(model: AdaptiveModel) -> None:
    """Put a subnet in use that answers differently from the full model."""
    from device_sdk.supernet.paths import k_cheapest

    macs = {block.id: float(block.macs) for block in model.bundle.supernet.blocks}
    [(_, subnet)] = k_cheapest(model.bundle.supernet, lambda edge: macs[edge.block], k=1)
    model.use(Plan(subnet))


def hard_all(model: AdaptiveModel, images: np.ndarray) -> None:
    everything = Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), ANY_SERVER)
    model.use(Plan(model.plan.subnet, hard=everything))


def settings(server: str, **changes: object) -> RemoteModel:
    chosen = {"server": server, "model": "digits:images", "privacy": "inputs", "timeout_s": TIMEOUT_S, **changes}
    return RemoteModel(**chosen)  # type: ignore[arg-type]


def test_a_bundle_opens_from_a_server_and_is_not_fetched_twice(server, public_key, tmp_path, images, full_answers):
    address = f"{server}/v1/bundles/digits"
    with AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path) as model:
        np.testing.assert_allclose(model(images).output, full_answers, atol=1e-4)
    with AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path) as model:
        deliveries = [line.event for line in read_log(model.log.path) if isinstance(line.event, Delivered)]
    assert [(delivery.how, delivery.blobs_fetched > 0) for delivery in deliveries] == [
        ("downloaded", True),
        ("unchanged", False),
    ]


def test_a_bundle_that_another_key_signed_is_refused(server, tmp_path):
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(new_key_pair()[1])
    with pytest.raises(SignatureError):
        AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=stranger, state_folder=tmp_path)


@pytest.mark.parametrize("name", ["nonsense", "..%2F..%2Fetc"])
def test_a_bundle_that_is_not_there_says_so(server, tmp_path, name):
    with pytest.raises(RefusedError) as caught:
        AdaptiveModel.open(f"{server}/v1/bundles/{name}", trust=None, state_folder=tmp_path)
    assert caught.value.status == 404


def test_offline_the_last_good_bundle_opens(demo_folder, public_key, tmp_path, images, full_answers):
    with running_server(demo_folder / "bundles" / "digits", data=tmp_path / "server") as url:
        address = f"{url}/v1/bundles/digits"
        AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path / "state").close()
    with AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path / "state") as model:
        np.testing.assert_allclose(model(images).output, full_answers, atol=1e-4)
        [*_, last] = [line.event for line in read_log(model.log.path) if isinstance(line.event, Delivered)]
    assert last.how == "kept"
    assert "no connection" in (last.failure or "")


def test_an_older_version_is_refused_by_who_has_a_newer_one(demo_folder, tmp_path):
    """The address stays the same, the server's bundle goes back a version: the newer one stays in use."""
    bundles = tmp_path / "bundles"
    newer = json.loads((demo_folder / "bundles" / "digits" / "manifest.json").read_bytes())
    (bundles / "digits").mkdir(parents=True)
    (bundles / "digits" / "blobs").symlink_to(demo_folder / "bundles" / "digits" / "blobs")
    manifest = bundles / "digits" / "manifest.json"
    manifest.write_text(json.dumps(newer | {"version": 7}))
    with running_server(bundles, data=tmp_path / "server") as url:
        address, store = f"{url}/v1/bundles/digits", tmp_path / "state"
        AdaptiveModel.open(address, trust=None, state_folder=store).close()
        manifest.write_text(json.dumps(newer | {"version": 6}))
        with AdaptiveModel.open(address, trust=None, state_folder=store) as model:
            assert model.bundle.manifest.version == 7
            [*_, last] = [line.event for line in read_log(model.log.path) if isinstance(line.event, Delivered)]
        assert "version 6" in (last.failure or "")
        with AdaptiveModel.open(address, trust=None, state_folder=store, allow_rollback=True) as model:
            assert model.bundle.manifest.version == 6


def test_hard_samples_get_the_servers_answers(server, public_key, state, images, full_answers):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        assert not np.allclose(model(images).output, full_answers, atol=1e-3)
        hard_all(model, images)
        model.remote.connect(settings(server))
        for answer in (model(images), model.infer(model.prepare(images))):
            assert set(answer.source) == {SERVER}
            np.testing.assert_allclose(answer.output, full_answers, atol=1e-4)
        model.remote.disconnect()
        assert set(model(images).source) == {FALLBACK}


def test_hard_samples_get_both_answers_pooled(server, public_key, state, images, full_answers):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        own = model(images).output
        hard_all(model, images)
        pool = LogarithmicPool(device=0.25, server=0.5)
        model.remote.connect(settings(server, pool=pool))
        answer = model(images)
        assert set(answer.source) == {SERVER}
        np.testing.assert_allclose(answer.output, 0.25 * own + 0.5 * full_answers, atol=1e-4)


def test_a_connection_keeps_the_share_that_is_asked(server, public_key, state):
    data = load_dataset("digits#search")
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        hard_all(model, data.images[:60])
        model.remote.connect(settings(server, share=0.25, timeout_s=20.0))
        sources = [source for _ in range(4) for source in model(data.images[:150]).source]
    assert FALLBACK not in sources
    assert sources.count(SERVER) / 600 == pytest.approx(0.25, abs=0.03)


def test_a_pool_that_gains_is_learned_and_used(server, public_key, state, images):
    data = load_dataset("digits#search")
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        own = model(images).output
        hard_all(model, images)
        with pytest.raises(UsageError, match="no server is connected"):
            model.remote.pool(data.images[:150], data.labels[:150])
        model.remote.connect(settings(server))
        alone = model(images).output
        pool = model.remote.pool(data.images[:150], data.labels[:150])
        expected = alone if pool is None else pool.pooled(own, alone)
        np.testing.assert_allclose(model(images).output, expected, atol=1e-4)
        model.remote.connect(settings(server, privacy="activations"))
        with pytest.raises(TransferError, match="may not be sent inputs"):
            model.remote.pool(data.images[:150], data.labels[:150])


def test_prepared_tensors_can_be_answered_too(server, public_key, state, images, full_answers):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        hard_all(model, images)
        model.remote.connect(settings(server, model="digits"))
        answer = model(images)
        assert set(answer.source) == {SERVER}
        np.testing.assert_allclose(answer.output, full_answers, atol=1e-4)


def test_nothing_is_sent_without_leave(demo_folder, public_key, tmp_path, state, images):
    """The server's own log of requests stays empty, metadata included."""
    with running_server(demo_folder / "bundles" / "digits", data=tmp_path / "server") as url:
        with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=state) as model:
            hard_all(model, images)
            model.remote.connect(settings(url, privacy="never"))
            assert set(model(images).source) == {FALLBACK}
        assert "escalating" not in model.log.path.read_text()


@pytest.mark.slow
def test_every_sample_is_answered_whatever_becomes_of_the_server(
    demo_folder, public_key, tmp_path, state, images, full_answers
):
    """Killed, and back on the same port: all answered, all marked, none of them another sample's."""
    process, url = _start_server(demo_folder / "bundles" / "digits", tmp_path / "server", port=0)
    with AdaptiveModel.open(f"{url}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        local = model(images).output
        hard_all(model, images)
        model.remote.connect(settings(url))
        assert _sources(model, images, local, full_answers) == {SERVER}
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert _sources(model, images, local, full_answers) == {FALLBACK}
        process, _ = _start_server(
            demo_folder / "bundles" / "digits", tmp_path / "server", port=int(url.rsplit(":", 1)[1])
        )
        try:
            deadline = time.monotonic() + 60
            while _sources(model, images[:5], local, full_answers) != {SERVER}:
                assert time.monotonic() < deadline, "the server is back, but is never asked again"
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait()
        events = [line.event.answering for line in read_log(model.log.path) if isinstance(line.event, Escalating)]
    assert events[:3] == [True, False, True]


def _start_server(bundles: Path, data: Path, *, port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "pathweave", "serve", str(bundles), "--data", str(data), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


def _sources(model: AdaptiveModel, images: np.ndarray, local: np.ndarray, full: np.ndarray) -> set[str]:
    """Classify one by one; every answer has to be the one that its mark promises."""
    found = set()
    for number, image in enumerate(images):
        answer = model(image)
        expected = full if answer.source[0] == SERVER else local
        np.testing.assert_allclose(answer.output[0], expected[number], atol=1e-4)
        found.add(answer.source[0])
    return found


def test_a_blob_that_decayed_on_the_disk_is_fetched_again(server, public_key, tmp_path, images, full_answers):
    address = f"{server}/v1/bundles/digits"
    AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path).close()
    blob = max((tmp_path / "store" / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with AdaptiveModel.open(address, trust=public_key, state_folder=tmp_path) as model:
        model.bundle.verify()
        np.testing.assert_allclose(model(images).output, full_answers, atol=1e-4)


def test_a_split_plan_answers_like_the_whole_subnet(server, public_key, state, images, full_answers):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        decision = split(model, tail_of(server), 3)
        assert [cost.position for cost in decision.costs] == list(range(1, 13))  # the input itself may not travel
        for position in (4, 11):
            model.use(split_at(model, position))
            answer = model(images)
            assert set(answer.source) == {SERVER}
            assert np.mean(answer.output.argmax(axis=1) == full_answers.argmax(axis=1)) >= 0.98
        model.use(split_at(model, 0))
        assert set(model(images).source) == {"subnet"}  # the privacy setting allows activations only
        model.remote.disconnect()
        assert set(model(images).source) == {"subnet"}


def test_what_the_server_answers_of_a_split_plan_may_be_abstained_from(server, public_key, state, images):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        model.remote.connect(tail_of(server))
        plan = split_at(model, 4)
        model.use(plan)
        confidences = model(images).confidence
        threshold = float(np.median(confidences))
        model.use(replace(plan, hard=Abstain(MaxConfidence(threshold))))
        answer = model(images)
        assert answer.source == tuple(np.where(confidences < threshold, ABSTAINED, SERVER).tolist())
        model.use(Plan(model.bundle.supernet.original))


def test_a_split_plan_goes_on_after_it_was_opened_again(server, public_key, state, images):
    address = f"{server}/v1/bundles/digits"
    with AdaptiveModel.open(address, trust=public_key, state_folder=state) as model:
        model.remote.connect(tail_of(server))
        model.use(split_at(model, 4))
        assert set(model(images).source) == {SERVER}
    with AdaptiveModel.open(address, trust=public_key, state_folder=state) as model:
        assert model.plan.split.position == 4
        assert set(model(images).source) == {"subnet"}
        model.remote.connect(tail_of(server))
        assert set(model(images).source) == {SERVER}
        model.use(Plan(model.bundle.supernet.original))


def test_hard_samples_may_send_activations_alone(server, public_key, state, images, full_answers):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        model.remote.connect(tail_of(server))
        tail = split_at(model, 4).split.tail
        ask = Ask(MaxConfidence(0.9), RemoteRef("digits:tail", model.bundle.digest), 4, tail)
        model.use(Plan(model.bundle.supernet.original, hard=ask))
        answer = model(images)
        assert set(answer.source) == {"subnet", SERVER}
        assert np.mean(answer.output.argmax(axis=1) == full_answers.argmax(axis=1)) >= 0.98


def test_a_model_that_the_plan_was_not_made_for_is_not_asked(server, public_key, state, images):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        model.remote.connect(RemoteModel(server=server, model="digits", privacy="inputs", timeout_s=20))
        for named in (RemoteRef("another"), RemoteRef("digits", "ab" * 32)):
            model.use(Plan(model.bundle.supernet.original, hard=Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), named)))
            assert set(model(images).source) == {FALLBACK}
        model.use(Plan(model.bundle.supernet.original))


def test_the_uplink_is_measured_if_it_is_not_given(server, public_key, state):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=state) as model:
        decision = split(model, tail_of(server), None)
        assert decision.uplink.mbps > 1  # within one machine, however busy
        assert 0 < decision.uplink.round_trip_ms < 500


@pytest.mark.parametrize("uplink_mbps", [0, -3])
def test_an_uplink_of_nothing_is_refused_before_anything_is_sent(server, public_key, tmp_path, uplink_mbps):
    with AdaptiveModel.open(f"{server}/v1/bundles/digits", trust=public_key, state_folder=tmp_path) as model:
        with pytest.raises(UsageError, match="above zero"):
            split(model, tail_of(server), uplink_mbps)
        with pytest.raises(UsageError, match="may be sent nothing"):
            split(model, RemoteModel(server=server, model="digits:tail"), 3)


def test_a_split_plan_falls_back_when_the_server_is_gone(
    demo_folder, public_key, tmp_path, state, images, full_answers
):
    process, url = _start_server(demo_folder / "bundles" / "digits", tmp_path / "server", port=0)
    with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=state) as model:
        split(model, tail_of(url), 3)
        model.use(split_at(model, 4))
        assert set(model(images).source) == {SERVER}
        process.kill()
        process.wait()
        answer = model(images)
        assert set(answer.source) == {FALLBACK}
        np.testing.assert_allclose(answer.output, full_answers, atol=1e-4)
        events = [line.event.answering for line in read_log(model.log.path) if isinstance(line.event, Splitting)]
        assert events == [True, False]


def test_a_server_with_another_version_runs_no_tail(demo_folder, public_key, tmp_path, images):
    """The device has version 1, the server was given version 2 of the same bundle meanwhile."""
    bundles = tmp_path / "bundles"
    newer = json.loads((demo_folder / "bundles" / "digits" / "manifest.json").read_bytes()) | {"version": 2}
    (bundles / "digits").mkdir(parents=True)
    (bundles / "digits" / "blobs").symlink_to(demo_folder / "bundles" / "digits" / "blobs")
    (bundles / "digits" / "manifest.json").write_text(json.dumps(newer))
    with (
        AdaptiveModel.open(
            demo_folder / "bundles" / "digits", trust=public_key, state_folder=tmp_path / "state"
        ) as model,
        running_server(bundles, data=tmp_path / "server") as url,
    ):
        with pytest.raises(ProtocolError, match="another version of the bundle"):
            split(model, tail_of(url), 3)
        assert set(model(images).source) == {"subnet"}


def split(model: AdaptiveModel, tails: RemoteModel, uplink_mbps: float | None) -> SplitDecision:
    model.remote.connect(tails)
    uplink = None if uplink_mbps is None else Uplink(uplink_mbps)
    found = model.adapt(None, Goal(optimise="latency_ms"), {"split"}, uplink=uplink)
    assert found.split is not None
    return found.split


def tail_of(server: str) -> RemoteModel:
    return RemoteModel(server=server, model="digits:tail", privacy="activations", timeout_s=5.0)


def test_a_plan_that_asks_is_chosen_by_the_servers_answers_and_keeps_what_it_promises(
    server, demo_folder, public_key, state
):
    data = load_dataset("digits#search")
    images, labels = data.images[:150], data.labels[:150]
    with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        model.remote.connect(settings(server, timeout_s=10.0))
        model.remote.connect(settings(server, model="digits:tail", timeout_s=10.0))
        goal = Goal(accuracy=0.9, optimise="latency_ms")
        found = model.adapt(images, goal, {"ask", "split", "abstain"}, labels)
        kinds = found.by_kind
        assert found.notes == ()
        assert {"ask", "split", "remote"} <= set(kinds)
        asking = kinds["ask"]
        model.use(asking.plan)
        report = load_dataset("digits#report")
        answer = model(report.images[:200])
    share = sum(source == SERVER for source in answer.source) / 200
    assert FALLBACK not in answer.source
    assert share == pytest.approx(asking.cost.share_asked, abs=0.15)
    assert asking.cost.bytes_sent > 0
    assert (answer.output.argmax(axis=1) == report.labels[:200]).mean() > asking.cost.accuracy - 0.1


def test_several_connected_models_are_all_asked_and_the_plan_names_one(server, demo_folder, public_key, state):
    data = load_dataset("digits#search")
    with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=state) as model:
        cheapest(model)
        away = settings("http://127.0.0.1:9", model="away:images")
        both = [settings(server, model=name, timeout_s=10.0) for name in ("digits:images", "digits")]
        model.remote.connect(*both, away)
        found = model.adapt(data.images[:150], Goal(optimise="accuracy"), {"ask"}, data.labels[:150])
        model.use(found.by_kind["ask"].plan)
        assert model.plan.hard.server.model in ("digits:images", "digits")
        assert SERVER in model(load_dataset("digits#report").images[:200]).source
        slow, fast = found.region.cells((0.001, 1000.0), (1e4,), (0.05,), progress=SilentProgress())
        assert slow.kind in ("device", "exits", "cascade")
        assert fast.best.latency_ms < slow.best.latency_ms
    assert any(note.startswith("away:images is not asked:") for note in found.notes)


def test_a_server_that_is_away_is_planned_without(demo_folder, public_key, state):
    data = load_dataset("digits#search")
    with AdaptiveModel.open(demo_folder / "bundles" / "digits", trust=public_key, state_folder=state) as model:
        model.remote.connect(settings("http://127.0.0.1:9"))
        goal = Goal(accuracy=0.5, optimise="latency_ms")
        found = model.adapt(data.images[:60], goal, {"subnets", "ask"}, data.labels[:60])
    assert "ask" not in found.by_kind
    assert found.notes[0].startswith("digits:images is not asked:")


def test_run_connects_the_models_that_the_plan_names_and_refuses_one_that_is_not_there(
    demo_folder, public_key, server, state
):
    folder = demo_folder / "bundles" / "digits"
    with AdaptiveModel.open(folder, trust=public_key, state_folder=state) as model:
        everything = MaxConfidence(UNREACHABLE_CONFIDENCE)
        model.use(Plan(model.bundle.supernet.original, hard=Ask(everything, RemoteRef("digits:images"))))
    command = [sys.executable, "-m", "pathweave", "run", str(folder), "--state", str(state), "--data", "digits#report"]
    command += ["--limit", "20", "--server", server, "--privacy", "inputs", "--timeout-s", "10", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, env=environment, timeout=60)

    assert json.loads(run().stdout)["sources"] == {"server": 20}
    refused = run("--server-model", "nonsense")
    assert refused.returncode == 2
    assert f"{server} has no model nonsense" in refused.stderr

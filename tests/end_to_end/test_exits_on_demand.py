"""A device that opens a bundle without its exits, and has them fetched, exchanged and dropped while it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import BlobError, SelfTestError, TransferError, UsageError
from device_sdk.logs.adaptation_log import ExitsExchanged, read_log
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.signing import signatures
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import ExitChoice, Plan
from pathweave.server_process import running_server
from tests.device_sdk.tiny_bundle import draw_images, write_tiny_bundle

ALL = ("x1-pooled", "x2-pooled", "x2-untrained", "x3-pooled")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """The address of the tiny bundle, its public key, and its folder at the server."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("served")
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    write_tiny_bundle(folder / "tiny", private)
    with running_server(folder / "tiny", data=folder / "data") as url:
        yield f"{url}/v1/bundles/tiny", public, folder / "tiny"


@pytest.fixture
def opened(served, tmp_path):
    """Opens the bundle in a state folder of this test, at first without exits."""
    address, key, _ = served
    return lambda **settings: AdaptiveModel.open(
        address, trust=key, **{"state_folder": tmp_path / "state", "exits": (), **settings}
    )


def stored(tmp_path: Path) -> int:
    return len(list((tmp_path / "state" / "store" / "blobs").iterdir()))


def exchanges(model: AdaptiveModel) -> list[ExitsExchanged]:
    return [line.event for line in read_log(model.log.path) if isinstance(line.event, ExitsExchanged)]


def test_a_bundle_opens_without_its_exits_and_their_blobs(opened, tmp_path, served):
    with opened() as model:
        assert model.exits.held == ()
        assert [one.id for one in model.bundle.offered.exits] == list(ALL)
        assert model(draw_images(3, seed=5)[0]).source == ("subnet",) * 3
        without = stored(tmp_path)
        assert without == len(model.bundle.manifest.blobs()) < len(model.bundle.offered.blobs())


def test_exits_are_fetched_tested_and_held_from_then_on(opened, tmp_path):
    with opened() as model:
        before = stored(tmp_path)
        model.exits.hold(["x3-pooled", "x1-pooled"])
        assert model.exits.held == ("x1-pooled", "x3-pooled")
        assert stored(tmp_path) == before + 2
        model.use(Plan(model.bundle.supernet.original, exits=(ExitChoice("x1-pooled", 0.0),)))
        assert set(model(draw_images(3, seed=5)[0]).source) == {"exit x1-pooled"}
        event = exchanges(model)[-1]
        assert (event.added, event.dropped, event.chosen_by) == (("x1-pooled", "x3-pooled"), (), "caller")
        assert event.bytes_fetched > 0
    with opened() as again:
        assert again.exits.held == ("x1-pooled", "x3-pooled")
        assert again.plan.exits == (ExitChoice("x1-pooled", 0.0),)


def test_a_plan_loses_the_exits_that_go_and_opens_again_without_them(opened):
    with opened() as model:
        model.exits.hold(["x1-pooled", "x2-pooled"])
        both = (ExitChoice("x1-pooled", 0.9), ExitChoice("x2-pooled", 0.8))
        model.use(Plan(model.bundle.supernet.original, exits=both))
        model.exits.hold(["x2-pooled"])
        assert model.plan.exits == both[1:]
    with opened() as again:
        assert again.plan.exits == both[1:]


def test_a_profile_without_the_new_exits_is_measured_again(opened):
    with opened() as model:
        assert model.profile().exits == ()
        model.exits.hold(["x2-pooled"])
        assert {one.exit for one in model.profile().exits} == {"x2-pooled"}
        images, labels = draw_images(60, seed=9)
        model.adapt(images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, labels)


def test_the_exits_worth_their_memory_are_fetched_and_held(opened):
    with opened() as model:
        placed = model.exits.place(memory_mb=0.00021)
        assert placed.failure is None
        assert placed.exits == model.exits.held
        assert 0 < placed.memory_bytes <= 210
        everything = model.exits.place()
        assert everything.exits == ("x1-pooled", "x2-pooled")  # the third answers too late to be worth anything
        assert everything.expectation > placed.expectation
        nothing = model.exits.place(memory_mb=0.0001)
        assert nothing.exits == model.exits.held == ()


@pytest.mark.slow
def test_without_the_server_exits_that_are_here_are_chosen_from(served, tmp_path):
    _, key, folder = served
    with running_server(folder, data=tmp_path / "data") as url:
        model = AdaptiveModel.open(
            f"{url}/v1/bundles/tiny", trust=key, exits=["x1-pooled"], state_folder=tmp_path / "state"
        )
    with model:
        placed = model.exits.place()
        assert placed.exits == ("x1-pooled",)
        assert placed.failure is not None
        with pytest.raises(TransferError):
            model.exits.hold(["x2-pooled"])
        assert model.exits.held == ("x1-pooled",)
        assert model(draw_images(2, seed=5)[0]).output.shape == (2, 3)


def test_an_exit_that_fails_its_self_test_leaves_the_old_set(opened, monkeypatch):
    with opened() as model:
        model.exits.hold(["x1-pooled"])

        def wrong(*arguments, **settings):
            raise SelfTestError("exit x2-pooled does not reproduce its golden outputs")

        monkeypatch.setattr("device_sdk.session.adaptive_model.run_guarded_self_test", wrong)
        with pytest.raises(SelfTestError):
            model.exits.hold(["x2-pooled"])
        assert model.exits.held == ("x1-pooled",)
    with opened() as again:
        assert again.exits.held == ("x1-pooled",)


def test_an_unknown_exit_is_refused_before_anything_is_fetched(opened, tmp_path):
    with opened() as model:
        before = stored(tmp_path)
        with pytest.raises(UsageError, match="has no exit x9"):
            model.exits.hold(["x1-pooled", "x9"])
        assert stored(tmp_path) == before
    with pytest.raises(UsageError, match="has no exit x9"):
        opened(exits=["x9"], state_folder=tmp_path / "other").close()


def test_negative_memory_is_refused(opened):
    with opened() as model, pytest.raises(UsageError, match="cannot be negative"):
        model.exits.place(memory_mb=-1)


def test_answers_go_on_while_sets_are_exchanged(opened):
    images = draw_images(4, seed=5)[0]
    with opened() as model:
        model.exits.hold(ALL)
        model.exits.hold([])
        expected = model(images).output
        wrong: list[object] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answer = model(images)
                if not np.allclose(answer.output, expected, atol=1e-4):
                    wrong.append(answer.source)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(8):
            model.exits.hold(ALL if number % 2 else ["x2-pooled"])
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_local_bundle_has_all_its_exits_at_hand(served, tmp_path):
    _, key, folder = served
    with AdaptiveModel.open(folder, trust=key, exits=(), state_folder=tmp_path) as model:
        model.exits.hold(["x3-pooled"])
        assert model.exits.held == ("x3-pooled",)
        placed = model.exits.place(memory_mb=1.0)
        assert len(placed.exits) == 2


def test_a_damaged_blob_of_an_exit_is_noticed_before_it_is_held(served, tmp_path):
    import shutil

    _, _, folder = served
    own = shutil.copytree(folder, tmp_path / "own")
    with AdaptiveModel.open(own, trust=None, exits=(), state_folder=tmp_path / "state") as model:
        exit_ = next(one for one in model.bundle.offered.exits if one.id == "x2-pooled")
        path = own / "blobs" / exit_.renditions[0].blob
        path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(BlobError, match="digest"):
            model.exits.hold(["x2-pooled"])
        assert model.exits.held == ()

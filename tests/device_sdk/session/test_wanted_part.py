"""Which part of a bundle a device opens, from a folder; tests/end_to_end/heads has a real server."""

from __future__ import annotations

import json
import shutil

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.held_part import HeldPart
from device_sdk.errors import BlobError, BundleError, UsageError
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import StoredPart, load_part, save_part
from device_sdk.session.wanted_part import WantedPart
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, ExitChoice, Plan, RemoteRef, Split, Subnet

ORIGINAL = Subnet(tuple(Edge(f"o{number}") for number in range(5)))


def head(bundle, position=2, *, digest=None, exits=()):
    fallback = "exit" if exits else "abstain"
    server = RemoteRef("tiny:tail", bundle.digest if digest is None else digest)
    return Plan(ORIGINAL, exits=exits, split=Split(position, (8,), ORIGINAL.edges[position:], server, fallback))


@pytest.fixture
def partial(tiny_bundle, bundle, tmp_path):
    """A copy of the bundle's folder with the blobs of the first two blocks alone."""
    folder = tmp_path / "partial"
    shutil.copytree(tiny_bundle.folder, folder)
    needed = HeldPart.of_plan(bundle.supernet, head(bundle)).blobs(bundle.with_exits(()).manifest)
    for path in (folder / "blobs").iterdir():
        if path.name not in needed:
            path.unlink()
    return folder


def test_a_folder_with_the_blobs_of_a_head_opens_with_its_plan_and_not_without(partial, bundle, tmp_path):
    state = tmp_path / "state"
    with pytest.raises(BlobError, match="is missing"):
        AdaptiveModel.open(partial, state_folder=state)
    plan = head(bundle)
    with AdaptiveModel.open(partial, plan=plan, state_folder=state) as model:
        assert model.plan == plan
        assert model.bundle.last_position == 2
        assert model.bundle.absent_blobs()
    with AdaptiveModel.open(partial, state_folder=state) as model:
        assert model.plan == plan
    with pytest.raises(BlobError, match="is missing"):
        AdaptiveModel.open(partial, plan="whole", state_folder=state)


def test_a_block_that_is_not_held_is_never_read(partial, bundle, tmp_path):
    with AdaptiveModel.open(partial, plan=head(bundle), state_folder=tmp_path / "state") as model:
        for edges in ([Edge("o2")], [Edge("o1"), Edge("o2")], [Edge("o1", "int8")]):
            with pytest.raises(
                UsageError, match=r"not here: this device holds only what its plan needs, up to cut point 2"
            ):
                model.bundle.stretch(edges)
        assert model.bundle.stretch([Edge("o0"), Edge("o1")]).inputs


def test_a_plan_of_another_graph_is_refused_before_anything_is_kept(tiny_bundle, bundle, tmp_path):
    plan = Plan(Subnet((Edge("o9"),)))
    with pytest.raises(UsageError, match="there is no block o9"):
        AdaptiveModel.open(tiny_bundle.folder, plan=plan, state_folder=tmp_path)
    assert load_part(tmp_path, "tiny", bundle.digest) is None


def test_a_subnet_alone_is_a_part_too(tiny_bundle, bundle, tmp_path):
    plan = Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))), exits=(ExitChoice("x1-pooled", 0.9),))
    with AdaptiveModel.open(tiny_bundle.folder, plan=plan, state_folder=tmp_path) as model:
        assert model.exits.held == ("x1-pooled",)
        assert {edge for edge in model.bundle.supernet.edges if model.bundle.part.has(edge)} == set(plan.subnet.edges)
        assert model.bundle.last_position == 5


def test_exits_that_were_kept_before_blocks_could_be_left_out_are_still_read(tiny_bundle, bundle, tmp_path):
    folder = tmp_path / f"tiny-{bundle.digest[:16]}"
    folder.mkdir()
    (folder / "exits.json").write_text(json.dumps({"exits": ["x1-pooled"]}))
    assert WantedPart(tmp_path)(bundle.manifest, bundle.digest) == HeldPart(("x1-pooled",))


@pytest.mark.parametrize("damage", ["", "[]", '{"exits": 3}', '{"plan": {"format": 9}}'])
def test_a_damaged_record_counts_as_none_and_is_said(bundle, tmp_path, caplog, damage):
    save_part(tmp_path, bundle, StoredPart((), head(bundle)))
    (tmp_path / f"tiny-{bundle.digest[:16]}" / "part.json").write_text(damage)
    assert WantedPart(tmp_path)(bundle.manifest, bundle.digest) == HeldPart()
    assert "is damaged" in caplog.text


def test_the_next_version_keeps_the_plan_and_names_its_own_server(bundle, tmp_path):
    kept = ExitChoice("x1-pooled", UNREACHABLE_CONFIDENCE)
    save_part(tmp_path, bundle, StoredPart(("x1-pooled",), head(bundle, exits=(kept,))))
    wanted = WantedPart(tmp_path, previous=lambda: ("tiny", bundle.digest))
    assert wanted.stored(bundle.manifest, "ab" * 32).plan == head(bundle, digest="ab" * 32, exits=(kept,))
    part = wanted(bundle.manifest, "ab" * 32)
    assert part == HeldPart(("x1-pooled",), frozenset({Edge("o0"), Edge("o1")}))


def test_a_next_version_without_such_a_plan_is_refused(bundle, tmp_path, caplog):
    save_part(tmp_path, bundle, StoredPart((), head(bundle)))
    wanted = WantedPart(tmp_path, previous=lambda: ("tiny", bundle.digest))
    other = Bundle.with_exits(bundle, ()).manifest
    renamed = [part if part.id != "o1" else type(part)(**{**_fields(part), "id": "n1"}) for part in other.blocks]
    manifest = type(other)(**{**_fields(other), "blocks": tuple(renamed)})
    with pytest.raises(BundleError, match="version 1 has no such plan: there is no block o1"):
        wanted(manifest, "ab" * 32)


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_the_rest_is_tested_when_it_comes(tiny_bundle, bundle, tmp_path):
    plan = head(bundle)
    AdaptiveModel.open(tiny_bundle.folder, plan=plan, state_folder=tmp_path).close()
    [tested] = (tmp_path / f"tiny-{bundle.digest[:16]}").glob(f"self-test-{16 * '[0-9a-f]'}.json")
    assert {edge["block"] for edge in json.loads(tested.read_text())["edges"]} == {"o0", "o1"}
    AdaptiveModel.open(tiny_bundle.folder, plan="whole", state_folder=tmp_path).close()
    assert "edges" not in json.loads(tested.read_text())
    AdaptiveModel.open(tiny_bundle.folder, plan=plan, state_folder=tmp_path).close()
    assert "edges" not in json.loads(tested.read_text())  # what passed stays passed


def test_a_device_that_sends_inputs_may_hold_no_block_at_all(tiny_bundle, bundle, tmp_path):
    with AdaptiveModel.open(tiny_bundle.folder, plan=head(bundle, 0), state_folder=tmp_path) as model:
        assert model.bundle.blob_sizes() == {}
        assert set(model(tiny_bundle.images[:2]).source) == {"abstained"}
        with pytest.raises(UsageError, match="nothing to measure"):
            model.profile()

"""A bundle's part in a hybrid: checked when the manifest is read, bound to the other by digests."""

from __future__ import annotations

import json

import msgspec
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid import path_digest
from device_sdk.bundles.hybrid_pairs import hybrid_plan, require_pair
from device_sdk.bundles.manifest import Hybrid, encode_manifest
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.errors import BundleError, ManifestError
from device_sdk.supernet.plan import Ask, Entropy, Plan, RemoteRef, encode_plan


@pytest.fixture
def path(bundle):
    return bundle.supernet.original


@pytest.fixture
def as_base(bundle, path):
    """The manifest of a base, whose global is the tiny bundle itself."""

    def make(**changes):
        plan = Plan(path, hard=Ask(Entropy(0.4), RemoteRef("tiny@hybrid:images", bundle.digest)))
        known = {
            "role": "base",
            "path": tuple(map(str, path.edges)),
            "partner": "tiny",
            "partner_path": path_digest(bundle.manifest, path),
            "plan": encode_plan(plan).decode(),
        }
        return msgspec.structs.replace(bundle.manifest, hybrid=Hybrid(**(known | changes)))

    return make


def opened(bundle, manifest) -> Bundle:
    return Bundle(bundle.folder, bundle.blobs, manifest, bundle.digest, has_signature=False)


def test_what_is_written_is_read(as_base):
    manifest = as_base()
    assert decode_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"partner_path": "x"}, "64 hexadecimal digits"),
        ({"path": ("o0",)}, "none of this bundle"),
        ({"path": ("nothing",)}, "none of this bundle"),
        ({"path": ("o0:axb",)}, "none of this bundle"),
        ({"plan": None}, "lacks its plan"),
        ({"role": "global"}, "has a plan"),
    ],
)
def test_a_part_that_cannot_be_one_is_refused(as_base, changes, complaint):
    with pytest.raises(ManifestError, match=complaint):
        decode_manifest(encode_manifest(as_base(**changes)))


def test_an_unknown_role_is_refused(as_base):
    broken = json.loads(encode_manifest(as_base()))
    broken["hybrid"]["role"] = "middle"
    with pytest.raises(ManifestError, match="role"):
        decode_manifest(json.dumps(broken).encode())


def test_the_plan_is_read_when_it_is_used(bundle, as_base, path):
    assert hybrid_plan(opened(bundle, as_base())).subnet == path
    with pytest.raises(BundleError, match="cannot be used"):
        hybrid_plan(opened(bundle, as_base(plan="{}")))
    with pytest.raises(BundleError, match="not the base of a hybrid"):
        hybrid_plan(bundle)


def test_a_digest_changes_with_the_blobs_and_the_classes_of_the_path(bundle, path):
    manifest = bundle.manifest
    found = path_digest(manifest, path)
    first, *others = manifest.blocks
    blob = msgspec.structs.replace(first.renditions[0], blob="0" * 64)
    changed = msgspec.structs.replace(first, renditions=(blob, *first.renditions[1:]))
    classes = msgspec.structs.replace(manifest.task, class_names=("a", "b", "c"))
    assert path_digest(msgspec.structs.replace(manifest, blocks=(changed, *others)), path) != found
    assert path_digest(msgspec.structs.replace(manifest, task=classes), path) != found
    assert path_digest(manifest, path) == found


def test_bundles_are_a_pair_only_both_ways(bundle, as_base, path):
    digest = path_digest(bundle.manifest, path)
    own = tuple(map(str, path.edges))

    def global_(partner_path):
        hybrid = Hybrid("global", own, "tiny", partner_path)
        return opened(bundle, msgspec.structs.replace(bundle.manifest, hybrid=hybrid))

    require_pair(opened(bundle, as_base()), global_(digest))
    with pytest.raises(BundleError, match="another base path"):
        require_pair(opened(bundle, as_base()), global_("0" * 64))
    with pytest.raises(BundleError, match="another global path"):
        require_pair(opened(bundle, as_base(partner_path="0" * 64)), global_(digest))

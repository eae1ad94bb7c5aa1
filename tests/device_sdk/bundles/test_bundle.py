from __future__ import annotations

import hashlib
import os

import pytest

from device_sdk.bundles.bundle import BLOB_MAX_BYTES, MANIFEST_MAX_BYTES, Bundle
from device_sdk.errors import BlobError, BundleError, ManifestError, SignatureError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.signing.signatures import new_key_pair
from device_sdk.supernet.plan import Edge


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_signed_bundle_opens_with_the_key_of_its_owner(tiny_bundle):
    bundle = Bundle.open(str(tiny_bundle.folder), trust=str(tiny_bundle.public_key))
    assert bundle.has_signature
    assert bundle.digest == hashlib.sha256(tiny_bundle.manifest_path.read_bytes()).hexdigest()
    assert bundle.manifest.name == "tiny"


def test_without_a_key_an_unsigned_bundle_opens(own_bundle):
    (own_bundle.folder / "manifest.sig").unlink()
    assert not Bundle.open(own_bundle.folder).has_signature


def test_with_a_key_an_unsigned_bundle_is_refused(own_bundle):
    (own_bundle.folder / "manifest.sig").unlink()
    with pytest.raises(SignatureError, match="is not signed"):
        Bundle.open(own_bundle.folder, trust=own_bundle.public_key)


def test_a_bundle_signed_by_somebody_else_is_refused(tiny_bundle, tmp_path):
    other = tmp_path / "other.pub"
    other.write_bytes(new_key_pair()[1])
    with pytest.raises(SignatureError, match=r"not by other\.pub"):
        Bundle.open(tiny_bundle.folder, trust=other)


def test_a_missing_key_file_is_named(tiny_bundle, tmp_path):
    with pytest.raises(SignatureError, match=r"nowhere\.pub"):
        Bundle.open(tiny_bundle.folder, trust=tmp_path / "nowhere.pub")


def test_one_altered_byte_of_the_manifest_breaks_the_signature(own_bundle):
    data = own_bundle.manifest_path.read_bytes()
    assert data.endswith(b"}\n")
    own_bundle.manifest_path.write_bytes(data[:-1] + b" ")  # the same JSON
    Bundle.open(own_bundle.folder)
    with pytest.raises(SignatureError):
        Bundle.open(own_bundle.folder, trust=own_bundle.public_key)


def test_the_signature_is_checked_before_the_manifest_is_parsed(own_bundle):
    own_bundle.manifest_path.write_bytes(b"not even JSON")
    with pytest.raises(SignatureError):
        Bundle.open(own_bundle.folder, trust=own_bundle.public_key)
    with pytest.raises(ManifestError):
        Bundle.open(own_bundle.folder)


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_file_of_another_length_is_refused(own_bundle, length):
    (own_bundle.folder / "manifest.sig").write_bytes(b"\0" * length)
    with pytest.raises(SignatureError, match=f"has {length} bytes instead of 64"):
        Bundle.open(own_bundle.folder)


def test_a_signature_that_cannot_be_read_is_refused(own_bundle):
    (own_bundle.folder / "manifest.sig").unlink()
    (own_bundle.folder / "manifest.sig").mkdir()
    with pytest.raises(SignatureError, match=r"cannot read manifest\.sig"):
        Bundle.open(own_bundle.folder)


@pytest.mark.parametrize("kind", ["nothing", "empty folder", "file"])
def test_what_is_no_bundle_is_said_to_be_none(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "empty folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("hello")
    with pytest.raises(BundleError, match=r"place is not a bundle: cannot read manifest\.json") as caught:
        Bundle.open(place)
    assert "pathweave package" in caught.value.hint


def test_a_manifest_above_the_limit_is_not_even_read(own_bundle):
    with own_bundle.manifest_path.open("r+b") as file:
        file.truncate(MANIFEST_MAX_BYTES + 1)
    with pytest.raises(ManifestError, match="more than 64000000 bytes"):
        Bundle.open(own_bundle.folder)


def test_a_missing_blob_is_found_when_the_bundle_is_opened(own_bundle):
    own_bundle.blob("m1-3").unlink()
    with pytest.raises(BlobError, match="is missing from") as caught:
        Bundle.open(own_bundle.folder)
    assert caught.value.hint


def test_a_truncated_blob_is_found_when_the_bundle_is_opened(own_bundle):
    blob = own_bundle.blob("m1-3")
    size = blob.stat().st_size
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BlobError, match=f"has {size - 1} bytes instead of {size}"):
        Bundle.open(own_bundle.folder)


def test_a_flipped_bit_is_found_whenever_the_blob_is_read(own_bundle, runtime):
    blob = own_bundle.blob("m1-3")
    flip_bit(blob)
    bundle = Bundle.open(own_bundle.folder)
    bundle.stretch((Edge("o1"),))
    for read in (
        lambda: bundle.read_blob(blob.name),
        lambda: bundle.stretch((Edge("m1-3"),)),
        bundle.verify,
        lambda: run_self_test(Workspace(bundle, runtime)),
    ):
        with pytest.raises(BlobError, match="does not match its digest"):
            read()


def test_a_blob_whose_size_is_not_stated_is_bounded_before_it_is_read(own_bundle):
    """The manifest does not state the sizes of shared blobs: any size was read into memory, and then its digest."""
    bundle = Bundle.open(own_bundle.folder)
    [shared] = bundle.manifest.blocks[0].renditions[0].shared
    os.truncate(own_bundle.folder / "blobs" / shared, BLOB_MAX_BYTES + 1)  # takes no space on disk
    for read in (
        lambda: Bundle.open(own_bundle.folder),
        lambda: bundle.read_blob(shared),
        lambda: bundle.hold([shared]),
    ):
        with pytest.raises(BlobError, match=f"{BLOB_MAX_BYTES} are allowed"):
            read()


def test_a_blob_that_grew_after_opening_is_not_read(own_bundle):
    blob, bundle = own_bundle.blob("m1-3"), Bundle.open(own_bundle.folder)
    size = blob.stat().st_size
    os.truncate(blob, 1 << 40)
    for read in (lambda: bundle.read_blob(blob.name), lambda: bundle.hold([blob.name])):
        with pytest.raises(BlobError, match=f"has {1 << 40} bytes instead of {size}"):
            read()


def test_a_damaged_shared_blob_is_found_by_every_block_that_needs_it(own_bundle):
    bundle = Bundle.open(own_bundle.folder)
    [shared] = bundle.manifest.blocks[0].renditions[0].shared
    flip_bit(own_bundle.folder / "blobs" / shared)
    with pytest.raises(BlobError):
        bundle.stretch((Edge("o1"),))


def test_a_link_out_of_the_bundle_is_worth_no_more_than_its_bytes(own_bundle, tmp_path):
    blob = own_bundle.blob("m1-3")
    outside = tmp_path / "outside"
    outside.write_bytes(blob.read_bytes())
    blob.unlink()
    blob.symlink_to(outside)
    bundle = Bundle.open(own_bundle.folder)
    bundle.verify()
    flip_bit(outside)
    with pytest.raises(BlobError, match="does not match its digest"):
        bundle.verify()


def test_a_blob_that_disappears_after_opening_is_a_blob_error(own_bundle):
    bundle = Bundle.open(own_bundle.folder)
    own_bundle.blob("m1-3").unlink()
    with pytest.raises(BlobError, match="cannot be read"):
        bundle.stretch((Edge("m1-3"),))


def test_a_link_that_leads_nowhere_is_a_missing_blob(own_bundle):
    blob = own_bundle.blob("o0")
    blob.unlink()
    os.symlink("nowhere", blob)
    with pytest.raises(BlobError, match="is missing"):
        Bundle.open(own_bundle.folder)


def test_a_stretch_holds_shared_weights_once_and_the_tensors_at_its_ends(bundle):
    stretch = bundle.stretch((Edge("o1"), Edge("o2"), Edge("o3")))
    assert len(stretch.fragments) == 4
    assert [spec.name for spec in (*stretch.inputs, *stretch.outputs)] == ["cut_1", "cut_4"]
    assert len(bundle.stretch((Edge("o4"),)).fragments) == 1


def test_sizes_are_those_of_the_files(bundle, tiny_bundle):
    on_disk = {path.name: path.stat().st_size for path in (tiny_bundle.folder / "blobs").iterdir()}
    assert bundle.blob_sizes() == on_disk
    assert bundle.manifest_bytes == tiny_bundle.manifest_path.stat().st_size


def test_a_shared_blob_of_another_size_than_stated_is_refused_without_reading_it(own_bundle):
    [shared] = {name for one in Bundle.open(own_bundle.folder).manifest.blocks for name in one.renditions[0].shared}

    def sized(manifest):
        manifest["shared_sizes"] = {shared: 12}

    own_bundle.edit(sized)
    with pytest.raises(BlobError, match="instead of 12"):
        Bundle.open(own_bundle.folder)

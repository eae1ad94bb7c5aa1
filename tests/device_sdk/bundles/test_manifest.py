from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.held_part import HeldPart
from device_sdk.bundles.manifest import Manifest, encode_manifest, manifest_schema
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.errors import ManifestError, UnsupportedFormatError
from tests.published_schemas import published

SCHEMA = Path(__file__).parents[3] / "docs" / "bundle_manifest.schema.json"
WRITE_SCHEMA = (
    'python -c "import json; from device_sdk.bundles.manifest import manifest_schema; '
    'print(json.dumps(manifest_schema(), indent=1))" > docs/bundle_manifest.schema.json'
)
OPTIONAL = {"hybrid", "exits", "input_sizes", "public_names", "notes", "shared_sizes", "members"}
DIGEST = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def valid(tiny_bundle):
    return json.loads(tiny_bundle.manifest_path.read_bytes())


@pytest.fixture
def manifest(valid):
    """The manifest of the tiny bundle as JSON values, to be altered."""
    return copy.deepcopy(valid)


def decode(manifest) -> Manifest:
    return decode_manifest(json.dumps(manifest).encode())


def test_what_is_written_is_read(bundle):
    data = encode_manifest(bundle.manifest)
    assert decode_manifest(data) == bundle.manifest
    assert encode_manifest(decode_manifest(data)) == data


def test_the_published_schema_is_that_of_the_types():
    assert json.loads(SCHEMA.read_text()) == published(manifest_schema()), f"write it again: {WRITE_SCHEMA}"


@pytest.mark.parametrize("name", [field for field in Manifest.__struct_fields__ if field not in OPTIONAL])
def test_a_missing_field_is_named(manifest, name):
    del manifest[name]
    with pytest.raises(ManifestError, match=f"missing required field `{name}`"):
        decode(manifest)


@pytest.mark.parametrize("name", ["id", "start", "end", "kind", "parameters", "macs", "renditions"])
def test_a_missing_field_of_a_block_is_named_with_its_place(manifest, name):
    del manifest["blocks"][3][name]
    with pytest.raises(ManifestError, match=rf"`{name}` - at `\$\.blocks\[3\]`"):
        decode(manifest)


def test_optional_fields_may_be_left_out(manifest, bundle):
    for name in OPTIONAL:
        del manifest[name]
    assert decode(manifest) == msgspec.structs.replace(bundle.manifest, exits=())


def test_unknown_fields_are_ignored_at_every_depth(manifest, bundle):
    manifest["later"] = {"x": [1, {}]}
    manifest["blocks"][0]["later"] = None
    manifest["blocks"][0]["renditions"][0]["golden"]["later"] = 1e300
    assert decode(manifest) == bundle.manifest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), "1"),
        (("version",), 1.5),
        (("name",), None),
        (("blocks",), {}),
        (("blocks", 0, "kind"), 7),
        (("task", "kind"), "telepathy"),
        (("cut_points", 0, "tensors", 0, "shape"), ["batch", 3]),
        (("cut_points", 0, "tensors", 0, "shape"), [3, 0, 3]),
        (("cut_points", 0, "tensors", 0, "shape"), [3, -1, 3]),
        (("onnx", "opset"), -1),
        (("onnx", "ir_version"), 0),
        (("self_test", "batch"), 0),
        (("self_test", "batch"), 10**9),
        (("preprocessing", "std"), [0.0, 1.0, 1.0]),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_its_place(manifest, path, value):
    *parents, last = path
    parent = manifest
    for step in parents:
        parent = parent[step]
    parent[last] = value
    with pytest.raises(ManifestError, match=rf"breaks the schema: .*\$.{path[0]}"):
        decode(manifest)


def test_a_block_of_an_unknown_kind_is_read(manifest):
    for block in manifest["blocks"][5:]:
        block["kind"] = "grown"
    assert {block.kind for block in decode(manifest).blocks} == {"original", "grown"}


@pytest.mark.parametrize("version", ["2.0", "2", "0.9", "11.0", "", "one", "１.0"])
def test_an_unknown_major_version_is_refused_before_anything_else(version):
    with pytest.raises(UnsupportedFormatError) as caught:
        decode({"format_version": version, "everything": "else is new"})
    assert caught.value.hint


def test_a_newer_minor_version_is_read(manifest):
    manifest["format_version"] = "1.7"
    manifest["shared_sizes"] = sizes_of_shared(manifest)
    assert decode(manifest).format_version == "1.7"


def sizes_of_shared(manifest) -> dict[str, int]:
    return {name: 100 for block in manifest["blocks"] for one in block["renditions"] for name in one["shared"]}


@pytest.mark.parametrize("version", ["1.3", "1.12"])
def test_from_1_3_on_every_shared_blob_has_a_size(manifest, version):
    manifest["format_version"] = version
    with pytest.raises(ManifestError, match="states no size for the shared blob"):
        decode(manifest)
    manifest["shared_sizes"] = sizes_of_shared(manifest)
    assert None not in decode(manifest).blobs().values()


@pytest.mark.parametrize("size", [-1, 2**31 + 1, 1.5, "7"])
def test_a_size_of_a_shared_blob_is_a_number_of_bytes(manifest, size):
    manifest["shared_sizes"] = dict.fromkeys(sizes_of_shared(manifest), size)
    with pytest.raises(ManifestError, match="shared_sizes"):
        decode(manifest)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../" + DIGEST[3:],
        "/etc/passwd",
        DIGEST.upper(),
        DIGEST[:63],
        DIGEST + "0",
        DIGEST + "\n",
        "g" * 64,
        "٣" * 64,
    ],
)
@pytest.mark.parametrize("place", ["blob", "shared"])
def test_a_blob_name_is_64_lower_case_hexadecimal_digits(manifest, name, place):
    manifest["blocks"][1]["renditions"][0][place] = name if place == "blob" else [name]
    with pytest.raises(ManifestError, match="is not 64 hexadecimal digits"):
        decode(manifest)


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a\\b", "a b", "a\n", "ä", "-x", "a\0", "x" * 129])
@pytest.mark.parametrize("place", ["bundle", "block"])
def test_names_hold_only_characters_that_are_safe_everywhere(manifest, name, place):
    if place == "bundle":
        manifest["name"] = name
    else:
        manifest["blocks"][5]["id"] = name
    with pytest.raises(ManifestError, match="characters that names must not have"):
        decode(manifest)


def test_a_graph_that_is_none_is_refused(manifest):
    manifest["blocks"] = [block for block in manifest["blocks"] if block["id"] != "o2"]
    with pytest.raises(ManifestError, match="do not make one path"):
        decode(manifest)


def test_a_tensor_of_unknown_type_is_refused(manifest):
    manifest["cut_points"][2]["tensors"][0]["dtype"] = "float8"
    with pytest.raises(ManifestError, match="cut_2 at cut point 2 is of unknown type float8"):
        decode(manifest)


def test_a_cut_point_without_tensors_is_refused(manifest):
    manifest["cut_points"][0]["tensors"] = []
    with pytest.raises(ManifestError, match="cut point 0 has no tensor"):
        decode(manifest)


def test_there_is_one_output_per_class(manifest):
    manifest["task"]["class_names"].append("yellow")
    with pytest.raises(ManifestError, match=r"\[3\] for classification of 4 classes"):
        decode(manifest)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"format_version": 1.0}',
        b'{"format_version": "\xff"}',
        b'\xef\xbb\xbf{"format_version": "1.0"}',
        b'{"format_version": "1.0", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format_version": "1.0", "blocks": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"format_version": "1.0", "version": ' + b"9" * 100_000 + b"}",
        b'{"format_version": "1.0", "version": 1e999}',
    ],
)
def test_hostile_json_is_a_manifest_error(data):
    with pytest.raises(ManifestError):
        decode_manifest(data)


@given(data=st.data())
def test_a_damaged_manifest_is_read_or_refused_but_never_anything_else(tiny_bundle, data):
    damaged = bytearray(tiny_bundle.manifest_path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ManifestError, UnsupportedFormatError):
        decode_manifest(bytes(damaged))


def test_blobs_lists_every_blob_once_with_its_size_where_stated(bundle, tiny_bundle):
    blobs = bundle.manifest.blobs()
    assert set(blobs) == {path.name for path in (tiny_bundle.folder / "blobs").iterdir()}
    assert list(blobs.values()).count(None) == 1  # the shared weights: the tiny bundle has format 1.0


TEXT = {"kind": "text", "tokenizer": DIGEST, "tokenizer_bytes": 3, "max_tokens": 8}


def test_a_preprocessing_that_does_not_fit_the_input_is_refused(manifest):
    manifest["preprocessing"] = TEXT
    with pytest.raises(ManifestError, match=r"float32 \[.*\], which its preprocessing does not prepare"):
        decode(manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "../keys"}, "not 64 hexadecimal digits"),
        ({"tokenizer_bytes": 10**12}, "tokenizer_bytes|<= 64000000"),
        ({"max_tokens": 1}, ">= 2"),
        ({"pad_id": -1}, ">= 0"),
    ],
)
def test_a_tokenizer_is_a_blob_within_bounds(manifest, change, message):
    manifest["preprocessing"] = TEXT | change
    with pytest.raises(ManifestError, match=message):
        decode(manifest)


def test_a_tokenizer_is_among_the_blobs_whatever_part_is_held(manifest):
    manifest["preprocessing"] = TEXT
    manifest["cut_points"][0]["tensors"][0] |= {"shape": [2, 8], "dtype": "int64"}
    manifest["input_sizes"] = []
    found = decode(manifest)
    assert found.blobs()[DIGEST] == 3
    assert HeldPart((), frozenset()).blobs(found)[DIGEST] == 3


def test_samples_of_a_kind_that_is_not_known_need_a_newer_reader(manifest):
    manifest["preprocessing"]["kind"] = "smell"
    with pytest.raises(UnsupportedFormatError, match="samples of the kind 'smell'"):
        decode(manifest)

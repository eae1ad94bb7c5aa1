"""Manifests that every implementation must take, and such that it must refuse with the stated error.

A case is one change of a good manifest: ``path`` leads to where ``value`` is put, or to what goes if there is none.
"""

from __future__ import annotations

from typing import Any

ACCEPTED, MANIFEST_ERROR, UNSUPPORTED = "accepted", "ManifestError", "UnsupportedFormatError"
DIGEST = "0123456789abcdef" * 4


def _size(height: int, width: int, **change: Any) -> dict[str, Any]:
    """What the reference bundle's manifest says of an input size; no golden output is looked at when it is read."""
    inner = [4, height, width]
    shapes = [[[3, height, width]], [inner], [inner, [4, 1, 1]], [inner], [[3]]]
    return {"size": [height, width], "shapes": shapes, "golden": {"samples": [], "tolerance": 0.0}} | change


def _shaped(cut_point: int, tensors: list[list[int]]) -> dict[str, Any]:
    """The input size 8x8 with other shapes at one cut point."""
    shapes = _size(8, 8)["shapes"]
    return _size(8, 8, shapes=[*shapes[:cut_point], tensors, *shapes[cut_point + 1 :]])


REQUIRED = (
    ("format_version",),
    ("name",),
    ("version",),
    ("task",),
    ("preprocessing",),
    ("cut_points",),
    ("blocks",),
    ("onnx",),
    ("self_test",),
    ("metrics",),
    ("provenance",),
    ("task", "class_names"),
    ("preprocessing", "std"),
    ("cut_points", 1, "tensors"),
    ("cut_points", 0, "tensors", 0, "shape"),
    ("blocks", 3, "id"),
    ("blocks", 3, "kind"),
    ("blocks", 0, "macs"),
    ("blocks", 0, "renditions", 0, "golden"),
    ("blocks", 0, "renditions", 0, "golden", "tolerance"),
    ("exits", 0, "branch"),
    ("input_sizes", 0, "size"),
    ("input_sizes", 0, "shapes"),
    ("input_sizes", 0, "golden"),
    ("input_sizes", 1, "shapes", 2),
    ("input_sizes", 1, "shapes", 2, 1),
    ("blocks", 1, "renditions", 0, "any_size"),  # o1 has no other
    ("onnx", "opset"),
    ("self_test", "original"),
    ("metrics", "samples"),
    ("provenance", "licence"),
)
OPTIONAL = (
    ("notes",),
    ("public_names",),
    ("exits",),
    ("input_sizes",),
    ("input_sizes", 0),
    ("input_sizes", 0, "error"),
    ("blocks", 4, "renditions", 0, "any_size"),
    ("exits", 0, "renditions", 0, "any_size"),
    ("cut_points", 0, "mandatory"),
    ("cut_points", 1, "tensors", 0, "dtype"),
    ("blocks", 0, "distillation_error"),
    ("exits", 0, "accuracy"),
)
UNKNOWN = (
    (("later",), {"x": [1, {"y": None}]}),
    (("blocks", 0, "later"), None),
    (("blocks", 0, "renditions", 0, "golden", "later"), 1e300),
    (("task", "later"), "more"),
    (("input_sizes", 0, "later"), [[8, 8]]),
    (("blocks", 5, "kind"), "grown"),
    (("blocks", 6, "kind"), "grown"),
)
_ORIGINALS = ["o0", "o1", "o2", "o3"]
MEMBERS = {
    "none": [],
    "one": [{"name": "whole", "blocks": _ORIGINALS}],
    "one with an accuracy": [{"name": "whole", "blocks": _ORIGINALS, "accuracy": 0.75}],
}
WRONG_MEMBERS = {
    "one without its last block": [{"name": "whole", "blocks": _ORIGINALS[:-1]}],
    "one in another order": [{"name": "whole", "blocks": _ORIGINALS[::-1]}],
    "two that share blocks": [{"name": name, "blocks": _ORIGINALS} for name in "ab"],
    "two of one name": [{"name": "a", "blocks": _ORIGINALS[:2]}, {"name": "a", "blocks": _ORIGINALS[2:]}],
    "two that share a cut point's sides": [
        {"name": "a", "blocks": _ORIGINALS[:2]},
        {"name": "b", "blocks": _ORIGINALS[2:]},
    ],
    "an unknown block": [{"name": "whole", "blocks": [*_ORIGINALS, "o9"]}],
    "no name": [{"blocks": _ORIGINALS}],
    "no list": "whole",
}
SIZES = {
    "none": [],
    "one": [_size(8, 8)],
    "height and width differ": [_size(8, 6), _size(6, 8)],
    "one side is the model's own": [_size(2, 8)],
    "an inner cut point as the model's own": [_shaped(2, [[4, 2, 2], [4, 1, 1]])],
    "error": [_size(8, 8, error=0.25)],
}
WRONG_SIZES = {
    "listed twice": [_size(8, 8), _size(4, 4), _size(8, 8)],
    "the model's own": [_size(2, 2)],
    "a cut point too few": [_size(8, 8, shapes=_size(8, 8)["shapes"][:-1])],
    "a cut point too many": [_size(8, 8, shapes=[*_size(8, 8)["shapes"], [[3]]])],
    "a tensor too few": [_shaped(2, [[4, 8, 8]])],
    "a tensor too many": [_shaped(1, [[4, 8, 8], [4, 8, 8]])],
    "an axis too few": [_shaped(1, [[4, 64]])],
    "an axis too many": [_shaped(3, [[4, 8, 8, 1]])],
    "an input of another size": [_shaped(0, [[3, 8, 6]])],
    "an input of other channels": [_shaped(0, [[1, 8, 8]])],
    "another output": [_shaped(4, [[4]])],
    "no extent": [_shaped(1, [[4, 0, 8]])],
    "a negative extent": [_shaped(1, [[4, -8, -8]])],
    "an extent that is text": [_shaped(1, [["batch", 8, 8]])],
    "a size of 0": [_size(0, 0)],
    "a size of one side": [_size(8, 8, size=[8])],
    "a size of three sides": [_size(8, 8, size=[3, 8, 8])],
    "a size that is text": [_size(8, 8, size="8x8")],
    "a size that is half": [_size(8, 8, size=[8.5, 8])],
    "null": None,
    "no list": {},
    "an error that is text": [_size(8, 8, error="0.25")],
    "no golden output": [_size(8, 8, golden=None)],
}
WRONG = (
    (("version",), "1"),
    (("version",), 1.5),
    (("version",), True),
    (("name",), None),
    (("name",), 7),
    (("blocks",), {}),
    (("blocks", 0, "kind"), "grown"),
    (("blocks", 6, "kind"), 7),
    (("blocks", 0, "macs"), "100"),
    (("task", "kind"), "telepathy"),
    (("task", "output"), "feelings"),
    (("cut_points", 0, "tensors", 0, "shape"), ["batch", 3]),
    (("cut_points", 0, "tensors", 0, "shape"), [3, 0, 3]),
    (("cut_points", 0, "tensors", 0, "shape"), [3, -1, 3]),
    (("cut_points", 0, "tensors", 0, "low"), "-2"),
    (("cut_points", 1, "tensors", 0, "dtype"), "float8"),
    (("cut_points", 2, "mandatory"), 1),
    (("onnx", "opset"), -1),
    (("onnx", "ir_version"), 0),
    (("self_test", "batch"), 0),
    (("self_test", "batch"), 1025),
    (("self_test", "seed"), 1.0),
    (("preprocessing", "std"), [0.0, 1.0, 1.0]),
    (("preprocessing", "mean"), [0.0]),
    (("preprocessing", "resize"), [0, 32]),
    (("preprocessing", "resize"), [32, 32, 3]),
    (("provenance", "tools"), {"python": 3.11}),
    (("notes",), "one"),
    # a graph that is none
    (("cut_points", 1, "index"), 2),
    (("cut_points", 0, "tensors"), []),
    (("cut_points", 2, "mandatory"), True),  # m1-3 jumps over it
    (("blocks", 0, "id"), "o1"),
    (("blocks", 1, "end"), 4),
    (("blocks", 1, "start"), -1),
    (("blocks", 4, "kind"), "original"),
    (("blocks", 0, "renditions"), []),
    (("blocks", 0, "renditions", 1, "name"), "fp32"),
    (("exits", 0, "position"), 0),
    (("exits", 0, "position"), 4),
    (("exits", 0, "id"), "x2-flat"),
    (("task", "class_names"), ["blue", "green"]),
    # input sizes at which an original block does not run, or that is no flag
    (("blocks", 1, "renditions", 0, "any_size"), False),
    (("blocks", 1, "renditions", 0, "any_size"), None),
    (("blocks", 1, "renditions", 0, "any_size"), 1),
    (("exits", 0, "renditions", 0, "any_size"), "true"),
)
BLOB_NAMES = (
    "",
    "../" + DIGEST[3:],
    "/etc/passwd",
    DIGEST.upper(),
    DIGEST[:63],
    DIGEST + "0",
    DIGEST + "\n",
    "g" * 64,
    "٣" * 64,
)
NAMES = ("", ".", "../x", "a/b", "a\\b", "a b", "a\n", "ä", "-x", "a\0", "x" * 129)
VERSIONS = ("2.0", "2", "0.9", "11.0", "", "one", "１.0")
RAW = {
    "nothing": b"",
    "null": b"null",
    "an array": b"[]",
    "a version that is a number": b'{"format_version": 1.0}',
    "not UTF-8": b'{"format_version": "\xff"}',
    "a byte order mark": b'\xef\xbb\xbf{"format_version": "1.0"}',
    "cut short": b'{"format_version": "1.0", "name": "x',
    "something behind": b'{"format_version": "1.0"} {}',
    "a trailing comma": b'{"format_version": "1.0",}',
    "a comment": b'{"format_version": "1.0" /* */}',
    "a word": b'{"format_version": "1.0", "later": word}',
    "not a number": b'{"format_version": "1.0", "later": NaN}',
    "a leading zero": b'{"format_version": "1.0", "later": 01}',
    "a line break in a string": b'{"format_version": "1.0\n"}',
    "infinity": b'{"format_version": "1.0", "version": 1e999}',
}


def manifest_cases() -> list[dict[str, Any]]:
    """All cases that change the reference bundle's manifest."""
    cases = [_case("as it is", (), ACCEPTED)]
    cases += [_case(f"without {_text(path)}", path, MANIFEST_ERROR) for path in REQUIRED]
    cases += [_case(f"without the optional {_text(path)}", path, ACCEPTED) for path in OPTIONAL]
    cases += [_case(f"unknown {_text(path)}", path, ACCEPTED, value=value) for path, value in UNKNOWN]
    cases += [_case(f"{_text(path)} = {value}", path, MANIFEST_ERROR, value=value) for path, value in WRONG]
    for sizes, outcome in ((SIZES, ACCEPTED), (WRONG_SIZES, MANIFEST_ERROR)):
        cases += [
            _case(f"input sizes: {name}", ("input_sizes",), outcome, value=value) for name, value in sizes.items()
        ]
    for members, outcome in ((MEMBERS, ACCEPTED), (WRONG_MEMBERS, MANIFEST_ERROR)):
        cases += [_case(f"members: {name}", ("members",), outcome, value=value) for name, value in members.items()]
    for name in BLOB_NAMES:
        cases.append(_case(f"blob {name!a}", ("blocks", 1, "renditions", 0, "blob"), MANIFEST_ERROR, value=name))
        cases.append(_case(f"shared {name!a}", ("blocks", 1, "renditions", 0, "shared"), MANIFEST_ERROR, value=[name]))
    for name in NAMES:
        cases.append(_case(f"name {name!a}", ("name",), MANIFEST_ERROR, value=name))
        cases.append(_case(f"block {name!a}", ("blocks", 6, "id"), MANIFEST_ERROR, value=name))
        cases.append(_case(f"kind {name!a}", ("blocks", 6, "kind"), MANIFEST_ERROR, value=name))
        cases.append(_case(f"exit {name!a}", ("exits", 1, "id"), MANIFEST_ERROR, value=name))
    cases += [_case(f"version {one!a}", ("format_version",), UNSUPPORTED, value=one) for one in VERSIONS]
    cases.append(_case("a newer minor version", ("format_version",), ACCEPTED, value="1.7"))
    cases.append(_case("samples of a stated kind", ("preprocessing", "kind"), ACCEPTED, value="image"))
    cases.append(_case("samples of an unknown kind", ("preprocessing", "kind"), UNSUPPORTED, value="smell"))
    cases.append(_case("without the sizes of shared blobs", ("shared_sizes",), MANIFEST_ERROR))
    for sizes in ({}, {"0" * 64: 7}, [], "7"):
        cases.append(_case(f"sizes of shared blobs: {sizes}", ("shared_sizes",), MANIFEST_ERROR, value=sizes))
    return cases


def raw_cases() -> list[dict[str, str]]:
    """Bytes that are no manifest at all."""
    return [{"name": name, "data": data.hex(), "outcome": MANIFEST_ERROR} for name, data in RAW.items()]


LIMITS: tuple[tuple[str, tuple[str | int, ...], int], ...] = (
    ("cut points; 4096 are allowed", ("cut_points",), 4096),
    ("blocks; 16384 are allowed", ("blocks",), 16384),
    ("exits; 4096 are allowed", ("exits",), 4096),
    ("input sizes; 256 are allowed", ("input_sizes",), 256),
    ("members; 64 are allowed", ("members",), 64),
    ("class names; 1048576 are allowed", ("task", "class_names"), 1 << 20),
    ("tensors at cut point 1; 64 are allowed", ("cut_points", 1, "tensors"), 64),
    ("renditions of o1; 64 are allowed", ("blocks", 1, "renditions"), 64),
    ("renditions of x1-pooled; 64 are allowed", ("exits", 0, "renditions"), 64),
    ("shared blobs of o1; 4096 are allowed", ("blocks", 1, "renditions", 0, "shared"), 4096),
    ("axes of a tensor; 8 are allowed", ("cut_points", 1, "tensors", 0, "shape"), 8),
    ("has more than 4096 characters", ("task", "class_names", 0), 4096),
    ("has more than 4096 characters", ("blocks", 0, "renditions", 0, "name"), 4096),
)


def limit_cases() -> list[dict[str, Any]]:
    """How often an item of a list (``item``, else its first), or a letter of a text, may be there.

    Once more is refused with a message that has ``refusal``. What is within a limit may be refused for another reason.
    """
    block = {"id": "o0", "start": 0, "end": 1, "kind": "original", "parameters": 0, "macs": 0, "renditions": []}
    exit_ = {"id": "x", "position": 1, "branch": "flat", "parameters": 0, "macs": 0, "renditions": []}
    short = {("blocks",): {"item": block}, ("exits",): {"item": exit_}}
    short[("members",)] = {"item": {"name": "whole", "blocks": []}}
    return [
        {"refusal": refusal, "path": list(path), "most": most} | short.get(path, {}) for refusal, path, most in LIMITS
    ]


def _case(name: str, path: tuple[str | int, ...], outcome: str, **change: Any) -> dict[str, Any]:
    return {"name": name, "path": list(path), **change, "outcome": outcome}


def _text(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))

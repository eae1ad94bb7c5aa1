"""The limits of a manifest that every implementation keeps."""

from __future__ import annotations

import copy
import json
from functools import reduce
from pathlib import Path

import pytest

from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.errors import ManifestError

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "vectors.json").read_text())["manifest_limits"]
MANIFEST = json.loads((CONTRACT / "bundle/manifest.json").read_text())
LETTER = "\U0001d11e"  # one character that UTF-16 writes as two


def repeated(case, count):
    """The manifest with an item at the case's path, or a letter, ``count`` times."""
    manifest = copy.deepcopy(MANIFEST)
    *way, last = case["path"]
    place = reduce(lambda found, step: found[step], way, manifest)
    one = LETTER if isinstance(place[last], str) else [case["item"] if "item" in case else place[last][0]]
    place[last] = one * count
    return json.dumps(manifest).encode()


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["refusal"])
def test_one_more_than_the_limit_is_refused_because_of_it(case):
    assert case["refusal"] in refusal(case, case["most"] + 1)
    assert case["refusal"] not in refusal(case, case["most"])


def refusal(case, count):
    """Why so many are refused; empty if they are not."""
    try:
        decode_manifest(repeated(case, count))
    except ManifestError as error:
        return str(error)
    return ""

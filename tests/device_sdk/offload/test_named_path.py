"""Names of paths at a server: what is written is read, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from device_sdk.bundles.hybrid import path_digest
from device_sdk.bundles.manifest import Hybrid
from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import MAX_NAME, bundle_of, named_path, path_model


def test_a_written_name_is_read(bundle, all_subnets):
    for path in all_subnets(bundle.supernet)[:20]:
        if path.input_size:
            continue
        for images in (False, True):
            name = path_model("tiny", path, images=images)
            assert bundle_of(name) == "tiny"
            assert named_path(bundle.manifest, name) == path


@pytest.mark.parametrize("name", ["tiny", "tiny:images", "tiny:tail"])
def test_a_name_without_a_path_has_none(bundle, name):
    assert named_path(bundle.manifest, name) is None
    assert bundle_of(name) == "tiny"


@pytest.mark.parametrize("path", ["", "o0", "hybrid", "o0,,o1", "o0,o0", "../x", "o0:images", "o0@int9,o1"])
def test_a_path_that_the_bundle_does_not_have_is_refused(bundle, path):
    with pytest.raises(UsageError):
        named_path(bundle.manifest, f"tiny@{path}")


def test_a_name_that_is_too_long_is_refused(bundle):
    with pytest.raises(UsageError, match="characters"):
        named_path(bundle.manifest, "tiny@" + "o0," * MAX_NAME)


def test_the_path_of_a_hybrid_has_a_short_name(bundle):
    path = bundle.supernet.original
    hybrid = Hybrid("global", tuple(map(str, path.edges)), "other", path_digest(bundle.manifest, path))
    manifest = msgspec.structs.replace(bundle.manifest, hybrid=hybrid)
    assert named_path(manifest, "tiny@hybrid:images") == path

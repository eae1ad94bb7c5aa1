"""The facts that bind the two bundles of a hybrid."""

from __future__ import annotations

import hashlib
import re

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import BundleError, ManifestError, PathweaveError
from device_sdk.supernet.plan import Subnet

HYBRID_PATH = "hybrid"  # how a server's clients name the path of a bundle's part in a hybrid
_DIGEST = re.compile(r"[0-9a-f]{64}")


def path_digest(manifest: Manifest, path: Subnet) -> str:
    """The sha256 of what ``path`` runs: block, rendition and blobs of each of its edges, and the class names.

    Raises:
        BundleError: the bundle has no such path.
    """
    digest = hashlib.sha256(repr(manifest.task.class_names).encode())
    supernet = manifest.supernet()
    try:
        supernet.check(path)
        for edge, block in supernet.walk(path):
            rendition = next(one for one in block.renditions if one.name == edge.rendition)
            digest.update("\n".join((str(edge), rendition.blob, *rendition.shared, "")).encode())
    except (PathweaveError, KeyError, StopIteration) as error:
        raise BundleError(f"{manifest.name} has no path {path}") from error
    return digest.hexdigest()


def check_hybrid(manifest: Manifest) -> None:
    """Check a manifest's part in a hybrid, where it has one.

    Raises:
        ManifestError: a digest is none, the path is none of this bundle, or the plan is not the path's.
    """
    hybrid = manifest.hybrid
    if hybrid is None:
        return
    if not _DIGEST.fullmatch(hybrid.partner_path):
        raise ManifestError(f"the hybrid's digest {hybrid.partner_path[:80]!r} is not 64 hexadecimal digits")
    try:
        path_digest(manifest, hybrid.subnet)
    except (BundleError, ValueError) as error:
        raise ManifestError(f"the hybrid's path is none of this bundle: {error}") from error
    if (hybrid.plan is None) != (hybrid.role == "global"):
        raise ManifestError(f"a hybrid's {hybrid.role} {'lacks its' if hybrid.role == 'base' else 'has a'} plan")

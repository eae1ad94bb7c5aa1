"""A bundle's part in a hybrid: a base for devices and a global model for a server, bound to each other by digests.

Source: Hybrid §2. The manifest of each part names the path that runs and a digest of what the other part's path runs;
the base's also has the plan, with the trained router, which names the global bundle's own digest.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from device_sdk.errors import BundleError, ManifestError, PathweaveError
from device_sdk.supernet.plan import Ask, Edge, Plan, Subnet
from device_sdk.supernet.plan_json import decode_plan

if TYPE_CHECKING:
    from device_sdk.bundles.bundle import Bundle
    from device_sdk.bundles.manifest import Manifest

HYBRID_PATH = "hybrid"  # how a server's clients name the path of a bundle's part in a hybrid
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Hybrid(msgspec.Struct, frozen=True):
    """A bundle's part in a hybrid: the path that runs, and the partner bundle.

    ``path``: its edges as text; ``partner``: name of the other bundle; ``partner_path``: digest of that one's path
    (``path_digest``). ``plan``: of the base only, as JSON text of the format of plans.
    """

    role: Literal["base", "global"]
    path: tuple[str, ...]
    partner: str
    partner_path: str
    plan: str | None = None

    @property
    def subnet(self) -> Subnet:
        """The path."""
        return Subnet(tuple(Edge.parse(edge) for edge in self.path))


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


def hybrid_plan(bundle: Bundle) -> Plan:
    """The plan of a base bundle: its path, and the global model for what the router sends.

    Raises:
        BundleError: the bundle is no base of a hybrid, or its plan is not of its path.
    """
    hybrid = bundle.manifest.hybrid
    if hybrid is None or hybrid.plan is None:
        raise BundleError(f"{bundle.manifest.name} is not the base of a hybrid")
    try:
        plan = decode_plan(hybrid.plan.encode())
        bundle.supernet.check_plan(plan)
    except PathweaveError as error:
        raise BundleError(f"the hybrid's plan cannot be used: {error}", hint=error.hint) from error
    if plan.subnet != hybrid.subnet or not isinstance(plan.hard, Ask):
        raise BundleError("the hybrid's plan is not that of its path")
    return plan


def require_pair(base: Bundle, global_: Bundle) -> None:
    """Check that two bundles are the parts of one hybrid.

    Raises:
        BundleError: they are not; says what differs.
    """
    own, other = base.manifest.hybrid, global_.manifest.hybrid
    if own is None or own.role != "base" or other is None or other.role != "global":
        raise BundleError(f"{base.manifest.name} and {global_.manifest.name} are not base and global of a hybrid")
    plan = hybrid_plan(base)
    assert isinstance(plan.hard, Ask)
    bound = {
        "the base was trained for another global path": own.partner_path == path_digest(global_.manifest, other.subnet),
        "the global model was trained for another base path": other.partner_path
        == path_digest(base.manifest, own.subnet),
        "the base's plan asks another bundle": plan.hard.server.digest == global_.digest,
    }
    for complaint, is_bound in bound.items():
        if not is_bound:
            raise BundleError(complaint, hint="take both bundles from one run of package-hybrid")

"""The two bundles of a hybrid: the base's plan, and whether base and global model belong together."""

from __future__ import annotations

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid import path_digest
from device_sdk.errors import BundleError, PathweaveError
from device_sdk.supernet.plan import Ask, Plan, decode_plan


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
            raise BundleError(complaint, hint="take both bundles from one run of package --pair")

"""Part of a bundle that a device opens: as told, as kept, or the same as of the version before."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from device_sdk.bundles.held_part import HeldPart
from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import BundleError, UsageError
from device_sdk.session.device_state import StoredPart, load_part
from device_sdk.supernet.plan import Ask, Plan, RemoteRef
from device_sdk.supernet.supernet import Supernet

Previous = Callable[[], tuple[str, str] | None]
"""Name and digest of the bundle that this device had last from the same address."""


def nothing_before() -> None:
    """No bundle was here."""


@dataclass(frozen=True)
class WantedPart:
    """Chooses the part of a bundle by its manifest.

    ``plan``: only what it needs is held; "whole": all blocks; None: what this device keeps of the bundle, or of the
    version before. ``exits``: where it keeps nothing; None for all.
    """

    state_folder: Path
    plan: Plan | Literal["whole"] | None = None
    exits: Collection[str] | None = None
    previous: Previous = nothing_before

    def __call__(self, manifest: Manifest, digest: str) -> HeldPart:
        """The part, as ``Bundle.open`` and ``fetch_bundle`` take it.

        Raises:
            UsageError: the plan does not fit the bundle's graph, or there is no such exit.
            BundleError: this device keeps what a plan needs, and that does not fit the new version's graph.
        """
        stored = self.stored(manifest, digest)
        if stored.plan is None:
            return HeldPart(stored.exits)
        supernet = manifest.supernet()
        ends = [supernet.block(edge.block).end for edge in supernet.edges_here(stored.plan)]
        exits = [one.id for one in manifest.exits if one.id in (stored.exits or ()) and one.position in ends]
        return HeldPart.of_plan(supernet, stored.plan, exits)

    def stored(self, manifest: Manifest, digest: str) -> StoredPart:
        """The same as the device keeps it."""
        exits = None if self.exits is None else tuple(self.exits)
        kept = load_part(self.state_folder, manifest.name, digest)
        if self.plan == "whole":
            return StoredPart(exits) if kept is None or kept.plan is not None else kept
        if self.plan is not None:
            manifest.supernet().check_plan(self.plan)
            return StoredPart(exits if kept is None or kept.plan is None else kept.exits, self.plan)
        return kept or self._carried(manifest, digest) or StoredPart(exits)

    def _carried(self, manifest: Manifest, digest: str) -> StoredPart | None:
        """The part of the version before, where that was not all of it: a new one does not bring the rest."""
        before = self.previous()
        kept = None if before is None or before[1] == digest else load_part(self.state_folder, *before)
        if before is None or kept is None or kept.plan is None:
            return None
        plan = _renewed(kept.plan, before[1], digest)
        _check_carried(manifest.supernet(), plan, manifest.version)
        return StoredPart(kept.exits, plan)


def _renewed(plan: Plan, old: str, new: str) -> Plan:
    """``plan`` for another version of the bundle: servers that ran the old one run the new one."""

    def ref(server: RemoteRef) -> RemoteRef:
        return msgspec.structs.replace(server, digest=new) if server.digest == old else server

    split, hard = plan.split, plan.hard
    if split is not None:
        split = msgspec.structs.replace(split, server=ref(split.server))
    if isinstance(hard, Ask):
        hard = msgspec.structs.replace(hard, server=ref(hard.server))
    return msgspec.structs.replace(plan, split=split, hard=hard)


def _check_carried(supernet: Supernet, plan: Plan, version: int) -> None:
    try:
        supernet.check_plan(plan)
    except UsageError as error:
        raise BundleError(
            f"this device holds only what its plan needs, and version {version} has no such plan: {error}",
            hint="choose a plan again: pathweave fetch --plan FILE",
        ) from error

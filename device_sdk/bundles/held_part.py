"""The part of a bundle that a device holds: exits on demand, or the head of a split plan. Pure.

The graph stays whole, since plans name blocks that run elsewhere; only the blobs of blocks and exits that are not
held are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from device_sdk.bundles.manifest import Manifest
from device_sdk.supernet.blocks import Rendition
from device_sdk.supernet.plan import Edge, Plan
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class HeldPart:
    """``exits`` and ``edges`` (renditions of blocks, at any input size) that are held. None: all of them."""

    exits: tuple[str, ...] | None = None
    edges: frozenset[Edge] | None = None

    @classmethod
    def of_plan(cls, supernet: Supernet, plan: Plan, exits: Iterable[str] = ()) -> HeldPart:
        """The blocks and exits that ``plan`` runs on a device, and ``exits``."""
        names = dict.fromkeys((*(choice.exit for choice in plan.exits), *exits))
        return cls(tuple(names), frozenset(edge.at(()) for edge in supernet.edges_here(plan)))

    @property
    def is_whole(self) -> bool:
        """True if all blocks are held."""
        return self.edges is None

    def has(self, edge: Edge) -> bool:
        """True if the blobs of ``edge`` are held."""
        return self.edges is None or edge.at(()) in self.edges

    def blobs(self, manifest: Manifest) -> dict[str, int | None]:
        """The blobs of this part, with their sizes where they are stated; ``manifest`` has the exits that are held."""
        renditions = [
            one for block in manifest.blocks for one in block.renditions if self.has(Edge(block.id, one.name))
        ]
        renditions += [one for exit_ in manifest.exits for one in exit_.renditions]
        names = dict.fromkeys(name for one in renditions for name in blob_names(one))
        sizes = manifest.blobs()
        return {name: sizes[name] for name in names}


EVERYTHING = HeldPart()
ChoosePart = Callable[[Manifest, str], HeldPart]
"""The part that a device wants of the bundle with this manifest and digest."""


def everything(manifest: Manifest, digest: str) -> HeldPart:
    """All of a bundle."""
    return EVERYTHING


def blob_names(rendition: Rendition) -> tuple[str, ...]:
    """The blobs that one rendition reads, shared ones first."""
    return (*rendition.shared, rendition.blob)

"""The part of a bundle that a device holds: the renditions that it can run, and the exits that it wants."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.supernet.blocks import Rendition

RenditionFilter = Callable[[Rendition], bool]


@dataclass(frozen=True)
class RunsOn:
    """Accepts renditions for this ``runtime`` and ``provider`` (None: any), except those in ``left_out``."""

    runtime: str
    provider: str | None = None
    left_out: frozenset[str] = frozenset()  # names of renditions

    def __call__(self, rendition: Rendition) -> bool:
        if rendition.runtime != self.runtime or rendition.name in self.left_out:
            return False
        return self.provider is None or not rendition.providers or self.provider in rendition.providers


def runnable_part(manifest: Manifest, accepts: RenditionFilter) -> Manifest:
    """``manifest`` without the renditions that ``accepts`` refuses, and without blocks and exits left with none.

    Raises:
        RuntimeFailedError: an original block has no rendition left, so that the bundle cannot run.
    """
    blocks = []
    for block in manifest.blocks:
        kept = tuple(filter(accepts, block.renditions))
        if kept:
            blocks.append(msgspec.structs.replace(block, renditions=kept))
        elif block.is_original:
            names = ", ".join(f"{one.name} for {one.runtime}" for one in block.renditions)
            raise RuntimeFailedError(
                f"bundle {manifest.name} has nothing that runs here for block {block.id}: it has {names}",
                hint="open it with another runtime, or package the model with a rendition for this one",
            )
    exits = [msgspec.structs.replace(one, renditions=tuple(filter(accepts, one.renditions))) for one in manifest.exits]
    exits = [one for one in exits if one.renditions]
    # other input sizes need a path of original blocks that supports them
    originals = [block for block in blocks if block.is_original]
    resizable = all(any(one.any_size for one in block.renditions) for block in originals)
    sizes = manifest.input_sizes if resizable else ()
    return msgspec.structs.replace(manifest, blocks=tuple(blocks), exits=tuple(exits), input_sizes=sizes)


def part_with_exits(manifest: Manifest, exits: Collection[str]) -> Manifest:
    """``manifest`` with only these of its exits.

    Raises:
        UsageError: it has no such exit; names those that it has.
    """
    names = [one.id for one in manifest.exits]
    unknown = sorted(set(exits) - set(names))
    if unknown:
        raise UsageError(
            f"bundle {manifest.name} has no exit {unknown[0][:80]}", hint="its exits: " + (", ".join(names) or "none")
        )
    return msgspec.structs.replace(manifest, exits=tuple(one for one in manifest.exits if one.id in exits))

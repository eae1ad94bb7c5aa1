"""Sizes of the part of a bundle that a device holds: stored, and loaded to run its plan."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.paging import resident_bytes
from device_sdk.execution.plan_segments import segments
from device_sdk.supernet.plan import Plan


@dataclass(frozen=True)
class PartSizes:
    """``blobs`` are here, with ``stored_bytes``; ``absent_blobs`` are not, with ``absent_bytes`` as far as the manifest
    states them; ``resident_bytes``: weights as loaded and the largest working set of the plan, for one sample."""

    blobs: int
    stored_bytes: int
    absent_blobs: int
    absent_bytes: int
    resident_bytes: int


def part_sizes(bundle: Bundle, plan: Plan) -> PartSizes:
    """Sizes of the held part of ``bundle``, and of ``plan`` loaded without a memory cap."""
    here = bundle.blob_sizes()
    absent = [size or 0 for size in bundle.absent_blobs().values()]
    loaded = resident_bytes(bundle, segments(bundle.supernet, plan))
    return PartSizes(len(here), sum(here.values()), len(absent), sum(absent), loaded)

"""Bytes sent at bottlenecks, against those at the plain cut points that take no more work here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.split.judging import Judging
from benchmarks.split.ways import MAX_DROP, Known, along, way_of
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.splitting.path_splits import SplitCost

_FACTOR = 10.0  # of the device; it does not change what is sent


def narrow_rows(known: Known, report: Judging, network: str) -> Iterator[dict[str, object]]:
    """For each bottleneck, the fewest bytes that lose at most a point on private images, and those of plain cuts.

    ``ratio``: of both. ``points_lost``: by the bottleneck, on the report's images.
    """
    supernet = known.bundle.supernet
    own = along(known.bundle, "fp32")
    offered = known.offered(_FACTOR, SplitLimits(max_drop=MAX_DROP, judge=known.judge), sends_input=False)
    here = [one for one in offered if one.tail and {edge.rendition for edge in one.head} == {"fp32"}]
    for position in supernet.bottlenecks:
        narrow = _fewest((one for one in here if one.position == position), known)
        plain = _fewest(
            (one for one in here if one.position < position and one.head == own.edges[: len(one.head)]), known
        )
        if narrow is not None and plain is not None:
            yield {
                "what": "narrow",
                "network": network,
                "position": position,
                "bytes": narrow.bytes_sent,
                "plain_position": plain.position,
                "plain_bytes": plain.bytes_sent,
                "ratio": narrow.bytes_sent / plain.bytes_sent,
                "points_lost": 100 * report.lost(way_of(narrow)),
            }


def _fewest(costs: Iterable[SplitCost], known: Known) -> SplitCost | None:
    """The way that sends fewest bytes of those that lose at most a point."""
    ordered = sorted(costs, key=lambda one: one.bytes_sent)
    return next((one for one in ordered if known.judge.drop(one) <= MAX_DROP), None)

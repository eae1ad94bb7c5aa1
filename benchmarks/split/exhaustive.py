"""The search of the product against measuring the drop of every way, on a coarse grid of ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.split.ways import MAX_DROP, Known, along
from device_sdk.policies.measured_splits.fastest import DropJudge, SplitLimits, fastest
from device_sdk.policies.splitting.path_splits import SplitCost

FACTORS = (1.0, 10.0, 40.0)
WIDTHS = (8, 6, 4, 3, 2)  # bits
EVERY = 4  # cut points


def exhaustive_rows(known: Known, judge: DropJudge, network: str) -> Iterator[dict[str, object]]:
    """A row for each device and privacy: the predicted latency of what is chosen over that of the fastest way."""
    limits = SplitLimits(max_drop=MAX_DROP, judge=judge)
    for sends_input in (True, False):
        for factor in FACTORS:
            grid = _grid(known.offered(factor, limits, sends_input=sends_input))
            chosen = fastest(grid, along(known.bundle, "fp32"), limits)
            keeping = [cost for cost in grid if limits.allows(judge.drop(cost), judge.caution(cost))]
            least_ms = min(cost.latency_ms for cost in keeping)
            yield {
                "what": "exhaustive",
                "network": network,
                "device_factor": factor,
                "privacy": "inputs" if sends_input else "activations",
                "ways": len(grid),
                "measured": len(chosen.drops),
                "chosen_ms": chosen.best.latency_ms,
                "fastest_ms": least_ms,
                "ratio": chosen.best.latency_ms / least_ms,
            }


def _grid(costs: Sequence[SplitCost]) -> list[SplitCost]:
    """Every few cut points, heads in one rendition, some widths; all whole paths on the device."""
    return [
        cost
        for cost in costs
        if not cost.tail
        or cost.sends != "activations"
        or (cost.position % EVERY == 0 and cost.bits[0] in WIDTHS and len({edge.rendition for edge in cost.head}) <= 1)
    ]

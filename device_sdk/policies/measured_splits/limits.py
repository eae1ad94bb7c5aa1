"""Limits on memory, storage and loss of a split, and the fastest split within them. Pure but for the judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from device_sdk.errors import UsageError
from device_sdk.offload.packing import BITS
from device_sdk.offload.quantisation import MAX_BITS
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Subnet

FEW_BITS = tuple(range(MAX_BITS, 0, -1))  # widths that are tried where what they lose can be measured
_ROUNDING = 1e-9  # of a difference of two scores
MOST_MEASURED = 40  # ways with fewer bits whose drop is measured


@dataclass(frozen=True)
class SplitLimits:
    """Limits of a split: ``memory_mb`` of the device for weights and working set, ``storage_mb`` for the weights as
    they are stored, and ``max_drop`` of the score (0–1), measured by ``judge``.

    Fewer than 8 bits per value sent, and other renditions of the device's part, are tried only where a drop is allowed.

    Raises:
        UsageError: a limit that is not above zero, or not a number; a drop that nothing measures.
    """

    memory_mb: float | None = None
    max_drop: float | None = None
    judge: DropJudge | None = None
    storage_mb: float | None = None

    def __post_init__(self) -> None:
        for what, limit in (("memory", self.memory_mb), ("storage", self.storage_mb)):
            if limit is not None and not limit > 0:
                raise UsageError(f"the device's {what} is {limit:g} MB; it must be above zero")
        if self.max_drop is not None and not 0 <= self.max_drop <= 1:
            raise UsageError(f"the drop is {self.max_drop:g}; it is a share of the samples, from 0 to 1")
        if self.max_drop is not None and self.judge is None:
            raise UsageError("a drop of accuracy is measured on private images", hint="give images and labels")

    @property
    def memory_bytes(self) -> float:
        """Limit of weights once loaded and the working set; infinite for none."""
        return math.inf if self.memory_mb is None else self.memory_mb * MB

    @property
    def stored_bytes(self) -> float:
        """Limit of weights as they are stored; infinite for none."""
        return math.inf if self.storage_mb is None else self.storage_mb * MB

    @property
    def may_lose(self) -> bool:
        """True if splits that lower the score are tried."""
        return self.judge is not None and self.max_drop is not None

    @property
    def named(self) -> str:
        """The limits of memory and storage in words."""
        named = [] if self.memory_mb is None else [f"{self.memory_mb:g} MB"]
        return " and ".join(named + ([] if self.storage_mb is None else [f"{self.storage_mb:g} MB of storage"]))

    def fits(self, cost: SplitCost) -> bool:
        """True if the device's part fits its memory and its storage."""
        return cost.device_bytes <= self.memory_bytes and cost.stored_bytes <= self.stored_bytes


class DropJudge(Protocol):
    """Measures the loss of splits on private samples (``measuring.SplitScore``)."""

    def drop(self, cost: SplitCost) -> float:
        """Drop in the score by a split, 0–1."""

    def sent_error(self, position: int, bits: int) -> float:
        """The error that ``bits`` per value add at a cut point. It ranks splits before they are measured."""


NO_LIMITS = SplitLimits()


def fastest(
    costs: Sequence[SplitCost], subnet: Subnet, limits: SplitLimits
) -> tuple[SplitCost, list[tuple[SplitCost, float]]]:
    """The fastest split within the limits; the drop is measured from the fastest on, until one passes.

    At a cut point, a split with more error than one that failed is taken to fail too. After ``MOST_MEASURED`` only
    splits with the subnet's own renditions and 8 bits are measured: the device alone and the server alone are among
    them, so the choice is never slower than one of these that keeps the limits.
    """
    fitting = sorted((cost for cost in costs if limits.fits(cost)), key=lambda cost: (cost.latency_ms, cost.bytes_sent))
    if not fitting:
        least = min(costs, key=lambda cost: (cost.device_bytes, cost.stored_bytes))
        raise UsageError(
            f"no part of the model fits {limits.named}, and its input may not be sent",
            hint=f"up to cut point {least.position} it takes {least.device_bytes / MB:.3g} MB; allow inputs to be sent",
        )
    drops: list[tuple[SplitCost, float]] = []
    if limits.judge is None:
        return fitting[0], drops
    failed: dict[int, float] = {}
    for cost in fitting:
        plain = cost.head == subnet.edges[: len(cost.head)] and set(cost.bits) <= {BITS}
        if not plain and (len(drops) >= MOST_MEASURED or cost.error > failed.get(cost.position, math.inf)):
            continue
        drops.append((cost, limits.judge.drop(cost)))
        if limits.max_drop is None or drops[-1][1] <= limits.max_drop + _ROUNDING:
            return cost, drops
        if cost.sends == "activations":
            failed[cost.position] = min(cost.error, failed.get(cost.position, math.inf))
    nearest, drop = min(drops, key=lambda pair: pair[1])
    raise UsageError(
        f"no split loses at most {limits.max_drop:g} of accuracy",
        hint=f"the nearest {_way(nearest)} and loses {drop:.3g}",
    )


def _way(cost: SplitCost) -> str:
    if cost.sends == "jpeg":
        return "sends the input as JPEG"
    return f"crosses at cut point {cost.position} in {cost.bits[0]} bits" if cost.tail else "stays on the device"


def reason(best: SplitCost, costs: Sequence[SplitCost], limits: SplitLimits) -> str:
    """Reason for ``best`` in words: the number of faster splits, and the limits that they break."""
    faster = [cost for cost in costs if cost.latency_ms < best.latency_ms]
    large = sum(not limits.fits(cost) for cost in faster)
    if not faster:
        return "nothing is faster"
    ways = [f"{large} need more memory or storage"] if large else []
    ways += [f"{len(faster) - large} lose too much accuracy"] if len(faster) > large else []
    return f"of {len(faster)} faster ways " + " and ".join(ways)

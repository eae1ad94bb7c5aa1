"""The fastest split whose loss, measured on private samples, is allowed. Every way is measured or ruled out by one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from device_sdk.errors import UsageError
from device_sdk.offload.packing import BITS
from device_sdk.policies.splitting.path_splits import PacketCoding, SplitCost
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Edge, Subnet

MEASURED_S = 20.0  # of measuring what ways lose
_ROUNDING = 1e-9  # of a difference of two scores
_LIKELY_ERROR = 0.1  # noise to signal that ways are first tried with
_MORE_ERROR = 4  # times as much once a way has passed


class DropJudge(Protocol):
    """Measures the loss of splits on private samples (``measuring.SplitScore``)."""

    def drop(self, cost: SplitCost) -> float:
        """Drop in the score by a split, 0–1."""

    def caution(self, cost: SplitCost) -> float:
        """The distance that a split, once its drop is measured, has to keep from its limit.

        Ways are chosen by their drops, and the lucky ones win: on new samples the chosen one loses more.
        """

    def coding(self, position: int, bits: int, per_channel: bool) -> PacketCoding | None:
        """Costs of packets at a cut point; their error ranks splits before they are measured. None: not known."""


@dataclass(frozen=True)
class SplitLimits:
    """Limits of a split: ``memory_mb`` of the device for weights and working set, ``storage_mb`` for the weights as
    they are stored, and ``max_drop`` of the score (0–1), measured by ``judge`` for ``measured_s`` at most.

    Fewer than 8 bits per value sent, and other renditions of the device's part, are tried only where a drop is allowed.

    Raises:
        UsageError: a limit that is not above zero, or not a number; a drop that nothing measures.
    """

    memory_mb: float | None = None
    max_drop: float | None = None
    judge: DropJudge | None = None
    storage_mb: float | None = None
    measured_s: float = MEASURED_S

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

    def allows(self, drop: float, caution: float) -> bool:
        """True if a measured drop keeps its limit, with caution."""
        return self.max_drop is None or drop + caution <= self.max_drop + _ROUNDING


NO_LIMITS = SplitLimits()


@dataclass(frozen=True)
class Fastest:
    """The fastest way, the drops that were measured, and the faster ways that neither were nor are ruled out."""

    best: SplitCost
    drops: tuple[tuple[SplitCost, float], ...] = ()
    not_measured: tuple[SplitCost, ...] = ()

    def reason(self, costs: Sequence[SplitCost], limits: SplitLimits) -> str:
        """The reason for ``best`` in words: the number of faster ways among ``costs``, and the limits they break."""
        faster = [cost for cost in costs if cost.latency_ms < self.best.latency_ms]
        large = sum(not limits.fits(cost) for cost in faster)
        unknown = len(self.not_measured)
        if not faster:
            return "nothing is faster"
        ways = [f"{large} need more memory or storage"] if large else []
        lossy = len(faster) - large - unknown
        ways += [f"{lossy} lose too much accuracy"] if lossy else []
        ways += [f"{unknown} were not measured for lack of time"] if unknown else []
        return f"of {len(faster)} faster ways " + " and ".join(ways)


def fastest(
    costs: Sequence[SplitCost],
    subnet: Subnet,
    limits: SplitLimits,
    *,
    below_ms: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Fastest:
    """The fastest of ``costs`` within ``limits``; steps 2 and 3 only look for latencies below ``below_ms``.

    1. of the ways in the renditions of ``subnet`` and in 8 bits, the fastest whose drop is allowed: device and server
    alone are among them; 2. the fastest of those whose errors let expect that they pass; 3. of each cut point, head and
    kind of range, the fastest first, as far as they can be faster than the best so far: the fewest bits whose drop is
    allowed, by bisection, since more bits lose no more. At a cut point, a way of more error than one that failed is
    taken to fail too. The lossless stage changes no drop. What is left when time is up counts as not measured.

    Raises:
        UsageError: nothing fits the device, or everything loses too much; names the nearest.
    """
    fitting = sorted((cost for cost in costs if limits.fits(cost)), key=lambda cost: (cost.latency_ms, cost.bytes_sent))
    if not fitting:
        least = min(costs, key=lambda cost: (cost.device_bytes, cost.stored_bytes))
        raise UsageError(
            f"no part of the model fits {limits.named}, and its input may not be sent",
            hint=f"up to cut point {least.position} it takes {least.device_bytes / MB:.3g} MB; allow inputs to be sent",
        )
    if limits.judge is None:
        return Fastest(fitting[0])
    ends_s = clock() + limits.measured_s
    found = _Measuring(fitting, subnet, limits, limits.judge, below_ms)
    found.measure_plain()
    found.measure_likely(lambda: clock() >= ends_s)
    found.measure_others(lambda: clock() >= ends_s)
    return found.result()


class _Measuring:
    """The drops of ways that fit, the fastest first, and the best way so far."""

    def __init__(
        self, fitting: Sequence[SplitCost], subnet: Subnet, limits: SplitLimits, judge: DropJudge, below_ms: float
    ) -> None:
        self._fitting, self._subnet, self._limits, self._judge = fitting, subnet, limits, judge
        self._below_ms = below_ms
        self._drops: dict[SplitCost, float] = {}
        self._best: SplitCost | None = None
        self._failed: dict[int, float] = {}  # the least error that lost too much, by cut point

    def measure_plain(self) -> None:
        """Measure ways in the subnet's own renditions and in 8 bits, until one passes."""
        for cost in self._fitting:
            if cost.head == self._subnet.edges[: len(cost.head)] and set(cost.bits) <= {BITS} and self._passes(cost):
                return

    def measure_likely(self, is_over: Callable[[], bool]) -> None:
        """Measure the fastest ways of little error, until one passes; then of more error, until one fails.

        After a way passes, only ways of more error are faster. So a few measurements leave little to the bisection.
        """
        error, has_failed = _LIKELY_ERROR, False
        while not is_over():
            first = next((cost for cost in self._fitting if cost.error <= error and self._is_open(cost)), None)
            if first is None:
                return
            if not self._passes(first):
                error, has_failed = first.error / 2, True
            elif has_failed:
                return
            else:
                error *= _MORE_ERROR

    def measure_others(self, is_over: Callable[[], bool]) -> None:
        """Bisect the bits of each cut point, head and kind of range that can be faster than the best so far."""
        groups: dict[tuple[int, tuple[Edge, ...], bool], list[SplitCost]] = {}
        for cost in self._fitting:
            groups.setdefault((cost.position, cost.head, cost.per_channel), []).append(cost)
        for group in groups.values():  # by the latency of their fastest ways
            rising = sorted(group, key=lambda cost: (sum(cost.bits), cost.latency_ms))
            while open_ := [cost for cost in rising if self._is_open(cost)]:
                if is_over():
                    return
                middle = open_[len(open_) // 2]
                if not self._passes(middle):
                    rising = rising[rising.index(middle) + 1 :]

    def result(self) -> Fastest:
        """The best way.

        Raises:
            UsageError: every way loses too much.
        """
        if self._best is None:
            nearest, drop = min(self._drops.items(), key=lambda pair: pair[1])
            raise UsageError(
                f"no split loses at most {self._limits.max_drop:g} of accuracy",
                hint=f"the nearest {_way(nearest)} and loses {drop:.3g}",
            )
        left = tuple(cost for cost in self._fitting if self._is_open(cost))
        return Fastest(self._best, tuple(self._drops.items()), left)

    def _is_open(self, cost: SplitCost) -> bool:
        """True if it is faster than the best so far and neither measured nor ruled out."""
        bound_ms = self._below_ms if self._best is None else min(self._below_ms, self._best.latency_ms)
        return (
            cost.latency_ms < bound_ms
            and cost not in self._drops
            and cost.error <= self._failed.get(cost.position, math.inf)
        )

    def _passes(self, cost: SplitCost) -> bool:
        """Measure; a way that passes and is faster becomes the best."""
        drop = self._drops[cost] = self._judge.drop(cost)
        if self._limits.allows(drop, self._judge.caution(cost)):
            if self._best is None or cost.latency_ms < self._best.latency_ms:
                self._best = cost
            return True
        if cost.sends == "activations":
            self._failed[cost.position] = min(cost.error, self._failed.get(cost.position, math.inf))
        return False


def _way(cost: SplitCost) -> str:
    if cost.sends == "jpeg":
        return "sends the input as JPEG"
    if cost.sends == "images":
        return "sends the input as pixels"
    return f"crosses at cut point {cost.position} {cost.coding}" if cost.tail else "stays on the device"

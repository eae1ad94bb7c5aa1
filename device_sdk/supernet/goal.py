"""The one statement of what is wanted of a plan: what to optimise, the limits, and the kinds to consider."""

from __future__ import annotations

from typing import Literal

import msgspec

from device_sdk.errors import BudgetError
from device_sdk.supernet.cost import MB, Budget
from device_sdk.supernet.requirement import Optimised, Requirement

Kind = Literal["subnets", "exits", "abstain", "ask", "split", "hybrid"]
KINDS: tuple[Kind, ...] = ("subnets", "exits", "abstain", "ask", "split", "hybrid")
"""What may be considered.

``subnets``: other subnets than the one in use; ``exits``: early exits; ``abstain``: hard samples without an answer;
``ask``: hard samples sent to a server; ``split``: the rest of the path at a server; ``hybrid``: a subnet here together
with one at a server.
"""

_MEDIAN = 50.0
_LEAST = ("latency_ms", "latency_ratio", "p95_latency_ms", "calls_per_second", "energy_mj", "macs", "memory_mb")
_SHARES = ("accuracy", "max_drop", "coverage", "share_asked")


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Optimise one quantity under limits on others. Expected values per sample, at batch 1.

    ``latency_ms``: of the calls at ``percentile`` when nothing else runs, and of plans whose samples take several ways,
    the mean; or ``latency_ratio``: of the full model's in the same circumstances. ``calls_per_second``: the
    application's pace; caches are colder between rare calls. None: the pace of the last calls, if any.
    ``accuracy``: the least, of samples that are answered; with ``certainty`` it holds on new samples like the private
    ones with this probability. ``max_drop``: accuracy, or another score, that exits or a split may lose instead.
    ``coverage``: least share of samples that are answered; ``share_asked``: most that a server is asked about.
    ``macs``: most multiply-accumulate operations of a hybrid, wherever they run. ``memory_mb``: most memory on the
    device, weights and working set; ``storage_mb``: most of its weights as a split stores them.

    Raises:
        BudgetError: a limit makes no sense, or two contradict each other.
    """

    optimise: Optimised = "accuracy"
    latency_ms: float | None = None
    latency_ratio: float | None = None
    percentile: float = _MEDIAN
    p95_latency_ms: float | None = None
    calls_per_second: float | None = None
    accuracy: float | None = None
    certainty: float | None = None
    max_drop: float | None = None
    coverage: float = 1.0
    share_asked: float | None = None
    energy_mj: float | None = None
    bytes_sent: float | None = None
    macs: float | None = None
    memory_mb: float | None = None
    storage_mb: float | None = None

    def __post_init__(self) -> None:
        for name in _LEAST:
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BudgetError(f"the goal's {name} is {limit:g}; it must be above zero")
        for name in _SHARES:
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise BudgetError(f"the goal's {name} is {share:g}; it must lie between 0 and 1")
        if self.latency_ms is not None and self.latency_ratio is not None:
            raise BudgetError("the goal has latency_ms and latency_ratio; one of them is enough")
        if self.accuracy is not None and self.max_drop is not None:
            raise BudgetError("the goal has accuracy and max_drop; one of them is enough")
        if not 0 < self.percentile < 100:
            raise BudgetError(f"the goal's percentile is {self.percentile:g}; it must lie between 0 and 100")
        self.requirement()  # refuses the rest

    @property
    def limits_latency(self) -> bool:
        """True if there is a latency limit of either kind."""
        return self.latency_ms is not None or self.latency_ratio is not None

    @property
    def is_budget(self) -> bool:
        """True if the most accurate plan within a latency, a memory or both is wanted, and nothing else is limited."""
        others = (self.accuracy, self.certainty, self.max_drop, self.p95_latency_ms, self.energy_mj, self.bytes_sent)
        few = self.optimise == "accuracy" and all(one is None for one in (*others, self.share_asked, self.macs))
        return few and (self.limits_latency or self.memory_mb is not None)

    def resolved(self, latency_ms: float | None) -> Goal:
        """The same with this latency in place of a ratio to the full model's."""
        return msgspec.structs.replace(self, latency_ms=latency_ms, latency_ratio=None) if self.latency_ratio else self

    def budget(self) -> Budget:
        """The limits that a single subnet has to keep."""
        return Budget(
            latency_ms=self.latency_ms,
            latency_ratio=self.latency_ratio,
            percentile=self.percentile,
            calls_per_second=self.calls_per_second,
            memory_mb=self.memory_mb,
        )

    def requirement(self, *, least_accuracy: float | None = None) -> Requirement:
        """The limits on expected costs; ``least_accuracy``: what ``max_drop`` comes to."""
        return Requirement(
            optimise=self.optimise,
            accuracy=self.accuracy if least_accuracy is None else least_accuracy,
            certainty=self.certainty,
            coverage=self.coverage or None,
            latency_ms=self.latency_ms,
            p95_latency_ms=self.p95_latency_ms,
            energy_mj=self.energy_mj,
            bytes_sent=self.bytes_sent,
            peak_bytes=None if self.memory_mb is None else round(self.memory_mb * MB),
            share_asked=self.share_asked,
        )

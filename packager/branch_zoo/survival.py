"""Branch survival, judged before export (MEEdge §3.2.2).

A branch survives if it answers before the full model, *or* is more accurate than it. Only one that is both late and no
better is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from device_sdk.profiling.profile import Profile
from device_sdk.supernet.plan import Edge
from packager.supernet.expansion import Expansion

FP32 = "fp32"


@dataclass(frozen=True)
class AnswerTimes:
    """Times at which branches and the full model answer, in ``unit``.

    ``reach``: from the input to each cut point, the output last. ``branch``: measured times by exit id; other branches
    take ``per_mac`` for each MAC.
    """

    unit: Literal["ms", "MACs"]
    reach: tuple[float, ...]
    per_mac: float = 1.0
    branch: Mapping[str, float] | None = None

    @property
    def full(self) -> float:
        """The full model's time."""
        return self.reach[-1]

    def answer(self, exit_id: str, position: int, macs: int) -> float:
        """From the input to the answer of an exit whose branch has ``macs``."""
        measured = (self.branch or {}).get(exit_id)
        return self.reach[position] + (self.per_mac * macs if measured is None else measured)


def survives(*, answer_time: float, accuracy: float, full_time: float, full_accuracy: float) -> bool:
    """True if a branch answers before the full model or is more accurate."""
    return answer_time < full_time or accuracy > full_accuracy


def answer_times(expansion: Expansion, profile: Profile | None = None) -> AnswerTimes:
    """Latencies measured on a device where ``profile`` has all original blocks in fp32; otherwise MACs.

    A profile is that of an earlier bundle of the same model: blocks and exits keep their ids.
    """
    blocks = expansion.originals
    macs = [float(block.macs) for block in blocks]
    by_macs = AnswerTimes("MACs", (0.0, *accumulate(macs)))
    if profile is None:
        return by_macs
    costs = profile.cost_model()
    edges = [Edge(block.id, FP32) for block in blocks]
    if not all(edge in costs.edge_costs for edge in edges):
        return by_macs
    milliseconds = [costs.edge_latency_ms(edge) for edge in edges]
    return AnswerTimes(
        "ms",
        (0.0, *accumulate(milliseconds)),
        per_mac=sum(milliseconds) / max(1.0, sum(macs)),
        branch={one.exit: one.cost.latency_ms for one in profile.exits if one.rendition == FP32 and not one.input_size},
    )

"""One task of the bench: a bundle, samples that choose, samples that judge, and the metric that people quote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.plan import Plan

Answers = npt.NDArray[np.float32]
Targets = npt.NDArray[Any]
_SHOWN = 240  # characters of a plan


@dataclass(frozen=True)
class Part:
    """Samples with targets, as ``adapt`` takes both."""

    samples: Any
    targets: Targets

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Case:
    """A bundle on its data.

    ``search``: the device's private samples, which choose; ``report``: others, which judge once. ``percent``: what
    ``metric`` names, of an answer for each sample and the targets. ``labelled``: False if ``adapt`` gets no targets.
    """

    name: str
    metric: str
    data: str
    folder: Path
    search: Part
    report: Part
    percent: Callable[[Sequence[Answers], Targets], float]
    labelled: bool = True

    def row(self, what: str, plan: Plan, **more: float) -> dict[str, object]:
        """A row of the table about a plan."""
        return {"case": self.name, "metric": self.metric, "what": what, "plan": str(plan.subnet)[:_SHOWN], **more}


def accuracy_percent(answers: Sequence[Answers], targets: Targets) -> float:
    """Right classes of answers [count, classes], in percent."""
    return 100 * float((np.array([one.argmax() for one in answers]) == targets).mean())

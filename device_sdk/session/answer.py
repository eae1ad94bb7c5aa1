"""Answers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import Plan

SUBNET, SERVER, FALLBACK, ABSTAINED = "subnet", "server", "fallback", "abstained"


@dataclass(frozen=True)
class Answer:
    """The answer to a batch (a single image is a batch of one).

    ``output``: logits [batch, classes]; ``source``: where each answer comes from: ``exit <id>``, ``subnet``,
    ``server``, ``fallback`` (the subnet or an exit in place of a server that did not answer) or ``abstained`` (the plan
    gives no answer; the logits are the subnet's, or no numbers where nothing was computed); ``latency_ms``: of running
    the plan, without the preparation of raw images; ``plan``: the one that ran.
    """

    output: Array
    source: tuple[str, ...]
    latency_ms: float
    class_names: tuple[str, ...]
    plan: Plan

    @cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        """The highest softmax probability of each sample, [batch]; NaN where its logits are not numbers."""
        with np.errstate(invalid="ignore"):  # infinite logits
            return confidence(self.output)

    @cached_property
    def labels(self) -> tuple[str | None, ...]:
        """The name of the most probable class of each sample; None where the plan abstained, or where the logits are
        not numbers: of a damaged input, or an overflow.
        """
        named = [self.class_names[index] for index in self.output.argmax(axis=1)]
        given = [
            source != ABSTAINED and bool(known)
            for source, known in zip(self.source, np.isfinite(self.confidence), strict=True)
        ]
        return tuple(name if has else None for name, has in zip(named, given, strict=True))

"""Rules that find hard samples by their logits. To add one: a file here, a name in ``Decider``."""

from __future__ import annotations

from typing import get_args

from device_sdk.supernet.deciders.logistic import Logistic, LogitFeature
from device_sdk.supernet.deciders.port import (
    Entropy,
    Margin,
    MaxConfidence,
    Thresholded,
    confidence,
    ease,
    everything_is_hard,
    hard,
    leaving,
    with_limit,
)
from device_sdk.supernet.deciders.router import MOST_ROUTER_NEURONS, ROUTER_FEATURES, Router

Decider = MaxConfidence | Entropy | Margin | Logistic | Router
UNFITTED: tuple[Decider, ...] = tuple(
    kind(0.0) for kind in get_args(Decider) if kind.__struct_fields__ == ("threshold",)
)


def decider_kind(decider: Thresholded) -> str:
    """Its tag in JSON."""
    return str(decider.__struct_config__.tag)


__all__ = [
    "MOST_ROUTER_NEURONS",
    "ROUTER_FEATURES",
    "UNFITTED",
    "Decider",
    "Entropy",
    "Logistic",
    "LogitFeature",
    "Margin",
    "MaxConfidence",
    "Router",
    "Thresholded",
    "confidence",
    "decider_kind",
    "ease",
    "everything_is_hard",
    "hard",
    "leaving",
    "with_limit",
]

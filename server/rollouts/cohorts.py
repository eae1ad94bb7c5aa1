"""The stage of a rollout that adds a device: by name, or by tags and a stable hash. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from server.rollouts.plan import Plan, Stage

_BASIS_POINTS = 10_000


def stage_of(plan: Plan, salt: str, device: str, tags: Mapping[str, str]) -> int | None:
    """The first stage that adds the device; None if none does."""
    place = _place(salt, device)
    for number, stage in enumerate(plan.stages):
        if device in stage.devices or (_has(tags, stage) and place < stage.percent / 100):
            return number
    return None


def is_in_second_half(salt: str, device: str) -> bool:
    """True for one half of all devices, whatever their stage."""
    return _place(f"{salt}/half", device) >= 0.5


def _has(tags: Mapping[str, str], stage: Stage) -> bool:
    return all(tags.get(name) == value for name, value in stage.tags.items())


def _place(salt: str, device: str) -> float:
    """0 to 1, the same for a device at every time and on every server."""
    digest = hashlib.sha256(f"{salt}/{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _BASIS_POINTS / _BASIS_POINTS

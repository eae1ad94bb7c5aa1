"""Pathweave: pretrained networks that fit themselves to the device they run on.

The public names come from the torch-free SDK and are imported lazily, on first use. Errors are in ``pathweave.errors``,
the terms of which plans are made in ``pathweave.plan``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from device_sdk import __version__

if TYPE_CHECKING:
    from device_sdk.data.datasets import load_dataset
    from device_sdk.errors import PathweaveError
    from device_sdk.live.elastic import ElasticSettings
    from device_sdk.live.switching import LiveSettings
    from device_sdk.offload.remote_model import RemoteModel
    from device_sdk.policies.found import Found
    from device_sdk.policies.gathering import AdaptationSettings
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.session.answer import Answer, Running
    from device_sdk.session.heads import plan_head
    from device_sdk.supernet.cost import Power, Uplink
    from device_sdk.supernet.goal import Goal
    from device_sdk.supernet.plan import Plan

    open = AdaptiveModel.open

_HOME = {
    "AdaptationSettings": "device_sdk.policies.gathering",
    "AdaptiveModel": "device_sdk.session.adaptive_model",
    "Answer": "device_sdk.session.answer",
    "ElasticSettings": "device_sdk.live.elastic",
    "Found": "device_sdk.policies.found",
    "Goal": "device_sdk.supernet.goal",
    "LiveSettings": "device_sdk.live.switching",
    "PathweaveError": "device_sdk.errors",
    "Plan": "device_sdk.supernet.plan",
    "Power": "device_sdk.supernet.cost",
    "RemoteModel": "device_sdk.offload.remote_model",
    "Running": "device_sdk.session.answer",
    "Uplink": "device_sdk.supernet.cost",
    "load_dataset": "device_sdk.data.datasets",
    "plan_head": "device_sdk.session.heads",
}

__all__ = [
    "AdaptationSettings",
    "AdaptiveModel",
    "Answer",
    "ElasticSettings",
    "Found",
    "Goal",
    "LiveSettings",
    "PathweaveError",
    "Plan",
    "Power",
    "RemoteModel",
    "Running",
    "Uplink",
    "__version__",
    "load_dataset",
    "open",
    "plan_head",
]

_MOVED = {
    "Budget": "pathweave.Goal",
    "CalibrationSettings": "pathweave.Goal(max_drop=…)",
    "Requirement": "pathweave.Goal",
}
_ROOMS = ("errors", "plan")  # of names that stood here before


def __getattr__(name: str) -> object:
    if name == "open":
        value = __getattr__("AdaptiveModel").open  # type: ignore[attr-defined]
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"pathweave has no {name!r}{_now(name)}")
    globals()[name] = value
    return value


def _now(name: str) -> str:
    """The new place of a name that stood here before."""
    if name in _MOVED:
        return f": it is now {_MOVED[name]}"
    for room in _ROOMS if name[:1].isupper() else ():
        if hasattr(importlib.import_module(f"pathweave.{room}"), name):
            return f": from pathweave.{room} import {name}"
    return ""


def __dir__() -> list[str]:
    return sorted(__all__)

"""Pathweave: pretrained networks that fit themselves to the device they run on.

The public names come from the torch-free SDK and are imported lazily, on first use. Errors are in ``pathweave.errors``,
the terms of which plans are made in ``pathweave.plan``.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from device_sdk import __version__

if TYPE_CHECKING:
    from device_sdk.errors import PathweaveError
    from device_sdk.live.elastic import ElasticSettings
    from device_sdk.live.switching import LiveSettings
    from device_sdk.offload.remote_model import RemoteModel
    from device_sdk.policies.adaptation import AdaptationSettings
    from device_sdk.policies.calibration import CalibrationSettings
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.session.answer import Answer
    from device_sdk.session.heads import plan_head
    from device_sdk.session.running import Running
    from device_sdk.supernet.cost import Budget, Power, Uplink
    from device_sdk.supernet.plan import Plan
    from device_sdk.supernet.requirement import Requirement

__all__ = [
    "AdaptationSettings",
    "AdaptiveModel",
    "Answer",
    "Budget",
    "CalibrationSettings",
    "ElasticSettings",
    "LiveSettings",
    "PathweaveError",
    "Plan",
    "Power",
    "RemoteModel",
    "Requirement",
    "Running",
    "Uplink",
    "__version__",
    "plan_head",
]

_HOME = {
    "AdaptationSettings": "device_sdk.policies.adaptation",
    "AdaptiveModel": "device_sdk.session.adaptive_model",
    "Answer": "device_sdk.session.answer",
    "Budget": "device_sdk.supernet.cost",
    "CalibrationSettings": "device_sdk.policies.calibration",
    "ElasticSettings": "device_sdk.live.elastic",
    "LiveSettings": "device_sdk.live.switching",
    "PathweaveError": "device_sdk.errors",
    "Plan": "device_sdk.supernet.plan",
    "Power": "device_sdk.supernet.cost",
    "RemoteModel": "device_sdk.offload.remote_model",
    "Requirement": "device_sdk.supernet.requirement",
    "Running": "device_sdk.session.running",
    "Uplink": "device_sdk.supernet.cost",
    "plan_head": "device_sdk.session.heads",
}

_ROOMS = ("errors", "plan")  # of names that stood here before


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    for room in _ROOMS if name[:1].isupper() else ():
        found = getattr(importlib.import_module(f"pathweave.{room}"), name, None)
        if found is not None:
            new = f"from pathweave.{room} import {name}"
            warnings.warn(f"pathweave.{name} will go with the next release: {new}", DeprecationWarning, stacklevel=2)
            return found
    raise AttributeError(f"module 'pathweave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

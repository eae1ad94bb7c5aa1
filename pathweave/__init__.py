"""Pathweave: pretrained networks that fit themselves to the device they run on.

The public names come from the torch-free SDK and are imported lazily, on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from device_sdk import __version__

if TYPE_CHECKING:
    from device_sdk.errors import (
        BlobError,
        BudgetError,
        BundleError,
        ClockError,
        ClosedError,
        CompositionError,
        CorruptImageError,
        DataError,
        DeadlineError,
        ExpiredError,
        ForkedError,
        InfeasibleBudgetError,
        InfeasibleDeadlineError,
        InputError,
        ManifestError,
        MeasurementError,
        MissingExtraError,
        NoAnswerYetError,
        PathweaveError,
        ProtocolError,
        RefusedError,
        RollbackError,
        RuntimeFailedError,
        SelfTestError,
        SignatureError,
        StorageError,
        TransferError,
        UnsupportedFormatError,
        UsageError,
    )
    from device_sdk.live.elastic import ElasticSettings
    from device_sdk.live.switching import LiveSettings
    from device_sdk.offload.pooling import LogarithmicPool
    from device_sdk.offload.remote_model import RemoteModel
    from device_sdk.policies.adaptation import AdaptationSettings
    from device_sdk.policies.calibration import CalibrationSettings
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.session.answer import Answer
    from device_sdk.session.heads import plan_head
    from device_sdk.session.running import Running
    from device_sdk.supernet.cost import Budget, PlanCost, Power, Uplink
    from device_sdk.supernet.plan import (
        Abstain,
        AnswerLocally,
        Ask,
        Edge,
        Entropy,
        ExitChoice,
        Logistic,
        Margin,
        MaxConfidence,
        Plan,
        RemoteRef,
        Router,
        Split,
        Subnet,
    )
    from device_sdk.supernet.requirement import Requirement
    from device_sdk.supernet.supernet import Supernet

__all__ = [
    "Abstain",
    "AdaptationSettings",
    "AdaptiveModel",
    "Answer",
    "AnswerLocally",
    "Ask",
    "BlobError",
    "Budget",
    "BudgetError",
    "BundleError",
    "CalibrationSettings",
    "ClockError",
    "ClosedError",
    "CompositionError",
    "CorruptImageError",
    "DataError",
    "DeadlineError",
    "Edge",
    "ElasticSettings",
    "Entropy",
    "ExitChoice",
    "ExpiredError",
    "ForkedError",
    "InfeasibleBudgetError",
    "InfeasibleDeadlineError",
    "InputError",
    "LiveSettings",
    "LogarithmicPool",
    "Logistic",
    "ManifestError",
    "Margin",
    "MaxConfidence",
    "MeasurementError",
    "MissingExtraError",
    "NoAnswerYetError",
    "PathweaveError",
    "Plan",
    "PlanCost",
    "Power",
    "ProtocolError",
    "RefusedError",
    "RemoteModel",
    "RemoteRef",
    "Requirement",
    "RollbackError",
    "Router",
    "Running",
    "RuntimeFailedError",
    "SelfTestError",
    "SignatureError",
    "Split",
    "StorageError",
    "Subnet",
    "Supernet",
    "TransferError",
    "UnsupportedFormatError",
    "Uplink",
    "UsageError",
    "__version__",
    "plan_head",
]

_HOME = {
    "AdaptationSettings": "device_sdk.policies.adaptation",
    "AdaptiveModel": "device_sdk.session.adaptive_model",
    "Answer": "device_sdk.session.answer",
    "Budget": "device_sdk.supernet.cost",
    "CalibrationSettings": "device_sdk.policies.calibration",
    "LogarithmicPool": "device_sdk.offload.pooling",
    "RemoteModel": "device_sdk.offload.remote_model",
    "ElasticSettings": "device_sdk.live.elastic",
    "LiveSettings": "device_sdk.live.switching",
    "Running": "device_sdk.session.running",
    "Plan": "device_sdk.supernet.plan",
    "Subnet": "device_sdk.supernet.plan",
    "Supernet": "device_sdk.supernet.supernet",
    "Abstain": "device_sdk.supernet.plan",
    "AnswerLocally": "device_sdk.supernet.plan",
    "Ask": "device_sdk.supernet.plan",
    "Edge": "device_sdk.supernet.plan",
    "Entropy": "device_sdk.supernet.plan",
    "ExitChoice": "device_sdk.supernet.plan",
    "Logistic": "device_sdk.supernet.plan",
    "Margin": "device_sdk.supernet.plan",
    "MaxConfidence": "device_sdk.supernet.plan",
    "PlanCost": "device_sdk.supernet.cost",
    "Power": "device_sdk.supernet.cost",
    "Uplink": "device_sdk.supernet.cost",
    "RemoteRef": "device_sdk.supernet.plan",
    "Requirement": "device_sdk.supernet.requirement",
    "Router": "device_sdk.supernet.plan",
    "Split": "device_sdk.supernet.plan",
    "plan_head": "device_sdk.session.heads",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pathweave' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "device_sdk.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

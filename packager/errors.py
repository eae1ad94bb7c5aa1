"""Every error that the packager raises on purpose, beside those of ``device_sdk.errors``.

PathweaveError (device_sdk.errors)
└── PackagingError         no bundle can be made
    ├── ModelLoadError     the model is unknown, or cannot be built or imported
    ├── WeightsError       a weights file is missing, unreadable or does not fit the model
    ├── TraceError         the model cannot be traced or has no cut points
    ├── TrainingError      distillation or tuning went wrong (a loss that is not a number)
    ├── VerificationError  an exported block does not reproduce its torch module
    ├── NotDelegatedError  a delegate does not take all operators of a block
    ├── ResumeError        the saved state of an interrupted run does not belong to this one
    └── OutputBusyError    another process writes the same bundle folder

The exception text says what happened in one line; ``hint`` says what to do about it.
"""

from __future__ import annotations

from device_sdk.errors import PathweaveError


class PackagingError(PathweaveError):
    """No bundle can be made."""


class ModelLoadError(PackagingError):
    """The model is unknown, or cannot be built or imported."""


class WeightsError(PackagingError):
    """A weights file is missing, unreadable or does not fit the model."""


class TraceError(PackagingError):
    """The model cannot be traced or has no cut points."""


class TrainingError(PackagingError):
    """Distillation or tuning went wrong."""


class VerificationError(PackagingError):
    """An exported block does not reproduce its torch module."""


class NotDelegatedError(PackagingError):
    """A delegate does not take all operators of a block."""


class ResumeError(PackagingError):
    """The saved state of an interrupted run does not belong to this one."""


class OutputBusyError(PackagingError):
    """Another process writes the same bundle folder."""

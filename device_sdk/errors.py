"""Every error that the device SDK raises on purpose.

PathweaveError
├── UsageError                 the caller asked for something that makes no sense (exit status 2)
├── MissingExtraError          an optional part is not installed (exit status 2)
├── BundleError                a bundle cannot be used
│   ├── ManifestError          manifest.json is missing, unreadable or breaks the schema
│   ├── UnsupportedFormatError written by a newer Pathweave
│   ├── SignatureError         unsigned, or not signed by the trusted key
│   ├── BlobError              a blob is missing, truncated or altered
│   ├── CompositionError       fragments that do not make one model
│   ├── SelfTestError          a block does not reproduce its golden outputs here
│   ├── RollbackError          older than the bundle that this device already had
│   └── ExpiredError           its release, or the list of keys, is too old to install from
│       └── ClockError         … by so long that the device's clock may be wrong
├── RuntimeFailedError         the inference runtime refused a model or a run
├── InputError                 a sample has the wrong shape, type or values
├── DataError                  a data set is missing, empty or broken
│   └── CorruptImageError      one image of it cannot be decoded
├── BudgetError                a budget that is not a budget (zero, negative, empty)
│   ├── InfeasibleBudgetError  no subnet fits; names the nearest feasible one
│   └── InfeasibleDeadlineError no answer is sure to be in time; names the least deadline
├── NoAnswerYetError           an anytime run has not reached its first exit
├── MeasurementError           what was measured makes no sense: the clock stood still or ran backwards
├── ClosedError                the model was closed
├── ForkedError                the model was opened before this process was forked off
├── TransferError              something could not be fetched from a server or sent to it
│   ├── DeadlineError          the server was too slow
│   ├── RefusedError           the server answered with an error; has its status
│   └── ProtocolError          the server's answer, or a request to it, breaks the protocol
└── StorageError               a file could not be written (disk full, no permission)

The exception text says what happened in one line; ``hint`` says what to do about it.
"""

from __future__ import annotations


class PathweaveError(Exception):
    """Base of all errors raised on purpose.

    ``hint`` is one line of advice for a person, kept apart from the text so that programs can ignore it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(PathweaveError):
    """The caller asked for something that makes no sense."""


class MissingExtraError(PathweaveError):
    """An optional part of Pathweave is not installed."""

    def __init__(self, module: str, *, extra: str) -> None:
        super().__init__(
            f"this needs {module}, which is not installed",
            hint=f"pip install 'pathweave[{extra}]'",
        )
        self.extra = extra


class BundleError(PathweaveError):
    """A bundle cannot be used."""


class ManifestError(BundleError):
    """manifest.json is missing, unreadable or breaks the schema."""


class UnsupportedFormatError(BundleError):
    """The bundle's format version is unknown to this version of Pathweave."""


class SignatureError(BundleError):
    """The bundle is unsigned, or not signed by the trusted key."""


class BlobError(BundleError):
    """A blob is missing, truncated or altered."""


class CompositionError(BundleError):
    """Fragments that do not make one model."""


class SelfTestError(BundleError):
    """A block does not reproduce its golden outputs on this machine."""


class RollbackError(BundleError):
    """The bundle is older than the one that this device already had."""


class ExpiredError(BundleError):
    """The bundle's release, or the newest key list, has expired: newer ones may be withheld. Nothing is installed."""


class ClockError(ExpiredError):
    """The release or the key list expired so long ago by this device's clock that the clock may be wrong."""


class RuntimeFailedError(PathweaveError):
    """The inference runtime refused a model or a run."""


class InputError(PathweaveError):
    """A sample has the wrong shape, type or values."""


class DataError(PathweaveError):
    """A data set is missing, empty or broken."""


class CorruptImageError(DataError):
    """One image of a data set cannot be decoded."""


class BudgetError(PathweaveError):
    """A budget that is not a budget: zero, negative, or nothing limited."""


class InfeasibleBudgetError(BudgetError):
    """No subnet fits the budget.

    ``nearest_latency_ms`` and ``nearest_peak_bytes`` are the predicted cost of the nearest feasible subnet,
    ``nearest`` its block ids.
    """

    def __init__(
        self,
        message: str,
        *,
        nearest: tuple[str, ...],
        nearest_latency_ms: float,
        nearest_peak_bytes: int,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.nearest = nearest
        self.nearest_latency_ms = nearest_latency_ms
        self.nearest_peak_bytes = nearest_peak_bytes


class InfeasibleDeadlineError(BudgetError):
    """No answer of the plan is sure to be there by the deadline. ``least_ms``: the least deadline that works now."""

    def __init__(self, message: str, *, least_ms: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.least_ms = least_ms


class NoAnswerYetError(PathweaveError):
    """An anytime run has not reached its first exit, or was stopped before it did."""


class MeasurementError(PathweaveError):
    """A measurement makes no sense: the clock stood still or ran backwards."""


class ClosedError(PathweaveError):
    """The model was closed."""


class ForkedError(PathweaveError):
    """The model was opened before this process was forked off: its threads stayed behind."""


class TransferError(PathweaveError):
    """Something could not be fetched from a server or sent to it: no connection, or one that was cut."""


class DeadlineError(TransferError):
    """The server was too slow: nothing came for too long, or not everything in time."""


class RefusedError(TransferError):
    """The server answered with an error. ``status`` is its HTTP status."""

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ProtocolError(TransferError):
    """A message breaks the protocol: not JSON, cut short, wrong shape or type, the answer to another question."""


class StorageError(PathweaveError):
    """A file could not be written: the disk is full or the folder is read-only."""

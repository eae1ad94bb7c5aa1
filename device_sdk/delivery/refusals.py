"""Versions that a device was offered and does not use, with the kind of reason, for the log."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.errors import (
    BudgetError,
    CompositionError,
    ExpiredError,
    RollbackError,
    RuntimeFailedError,
    SelfTestError,
    SignatureError,
    StorageError,
    TransferError,
)

_KINDS: tuple[tuple[str, tuple[type[Exception], ...]], ...] = (
    ("self_test", (SelfTestError, CompositionError, RuntimeFailedError)),
    ("memory", (BudgetError,)),
    ("expired", (ExpiredError,)),
    ("signature", (SignatureError,)),
    ("rollback", (RollbackError,)),
    ("transfer", (TransferError,)),
    ("storage", (StorageError,)),
)
OTHER = "bundle"  # damaged, another name, a format that this SDK does not read


@dataclass(frozen=True)
class Refusal:
    """``version`` was offered; ``digest`` of its manifest if that came. ``reason``: one of the kinds above."""

    version: int
    digest: str | None
    reason: str


@dataclass
class Offered:
    """The version that a delivery is about to install, as far as it is known."""

    version: int | None = None
    digest: str | None = None

    def refused(self, error: Exception, *, kept_version: int, kept_digest: str) -> Refusal | None:
        """The refusal because of ``error``; None if nothing is offered but what is kept."""
        known = self.version == kept_version if self.digest is None else self.digest == kept_digest
        if self.version is None or known:
            return None
        return Refusal(self.version, self.digest, reason_of(error))


def reason_of(error: Exception) -> str:
    """The kind of reason that an error is."""
    return next((kind for kind, types in _KINDS if isinstance(error, types)), OTHER)

"""Permissions of clients. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Scope(IntEnum):
    """Each scope includes those before it.

    ``DEVICE``: fetch bundles, infer, plan, send one device's log. ``PACKAGE``: submit packaging jobs, see and cancel
    one's own. ``OPERATOR``: all jobs, publishing, all devices, the status page. ``ADMIN``: tokens and enrolment codes.
    """

    DEVICE = 1
    PACKAGE = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """The name in the database, on the command line and in replies."""
        return self.name.lower()

    @classmethod
    def named(cls, label: str) -> Scope:
        """The scope with this label (KeyError if there is none)."""
        return cls[label.upper()]


SCOPES = tuple(scope.label for scope in Scope)


@dataclass(frozen=True)
class Client:
    """The sender of a request. ``name``: of its token, or its address if none is required.

    ``device``: the only device that it may send log lines of; None: not bound to one.
    """

    name: str
    scope: Scope
    device: str | None = None

    def may(self, scope: Scope) -> bool:
        """True if the client's scope includes ``scope``."""
        return self.scope >= scope

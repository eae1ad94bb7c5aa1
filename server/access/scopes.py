"""Permissions of clients: scopes, and the scope that each route requires. Pure."""

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

# By endpoint. None: public, without a token; these routes reveal nothing about bundles, devices, jobs and tokens.
SCOPE_OF: dict[str, Scope | None] = {
    "health.health": None,
    "inference.live": None,
    "inference.ready": None,
    "page.script": None,
    "tokens.enrol": None,  # the one-time code in the body stands in for a token
    "bundles.list": Scope.DEVICE,
    "bundles.describe": Scope.DEVICE,
    "bundles.manifest": Scope.DEVICE,
    "bundles.signature": Scope.DEVICE,
    "bundles.release": Scope.DEVICE,
    "bundles.key_list": Scope.DEVICE,
    "bundles.blob": Scope.DEVICE,
    "inference.server": Scope.DEVICE,
    "inference.model": Scope.DEVICE,
    "inference.model_ready": Scope.DEVICE,
    "inference.model_infer": Scope.DEVICE,
    "inference.version": Scope.DEVICE,
    "inference.version_ready": Scope.DEVICE,
    "inference.version_infer": Scope.DEVICE,
    "placements.decide": Scope.DEVICE,
    "split.profile": Scope.DEVICE,
    "split.probe": Scope.DEVICE,
    "logs.add": Scope.DEVICE,
    "jobs.list": Scope.PACKAGE,
    "jobs.add": Scope.PACKAGE,
    "jobs.describe": Scope.PACKAGE,
    "jobs.cancel": Scope.PACKAGE,
    "jobs.log": Scope.PACKAGE,
    "jobs.publish": Scope.OPERATOR,
    "logs.devices": Scope.OPERATOR,
    "page.page": Scope.OPERATOR,
    "page.jobs": Scope.OPERATOR,
    "tokens.list": Scope.ADMIN,
    "tokens.revoke": Scope.ADMIN,
    "tokens.new_code": Scope.ADMIN,
}


def required_scope(endpoint: str | None) -> Scope | None:
    """The scope of a route; None if it is public. Unknown addresses require a token, unlisted routes the highest."""
    return Scope.DEVICE if endpoint is None else SCOPE_OF.get(endpoint, Scope.ADMIN)


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

"""Tables of the fleet, for the page and the metrics. ``server/fleet`` fills them from stored lines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"

_number: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")
_NEEDED = ("first_seen", "last_seen", "line_time", "bundle", "runtime")
_TEXTS = ("plan_time", "plan_kind", "subnet_time", "subnet", "failure_time", "failure", "failure_text")
_FIGURES = ("latency_ms", "budget_ms", "budget_use", "share_asked")
_INDEXES = {
    "last_seen": ["last_seen"],
    "bundle": ["bundle", "last_seen"],
    "plan": ["plan_kind", "last_seen"],
    "latency": ["latency_ms"],
    "budget": ["budget_use"],
    "share": ["share_asked"],
    "failure": ["failure_time"],
}


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "fleet_devices",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("lines", _number, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _NEEDED),
        *(sa.Column(name, sa.Text) for name in _TEXTS),
        *(sa.Column(name, _real) for name in _FIGURES),
        sqlite_strict=True,
    )
    for name, columns in _INDEXES.items():
        op.create_index(f"fleet_devices_by_{name}", "fleet_devices", [*columns, "device"])
    op.create_table(
        "fleet_device_days",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("device", "day", "kind")),
        sa.Column("hours", sa.Integer, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "fleet_periods",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("unit", "period", "kind")),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("devices", _number, nullable=False),
        sqlite_strict=True,
    )

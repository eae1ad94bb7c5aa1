"""Rollouts: the fleet, which devices have which version, and what they report about it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"

_number: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")


def _table(name: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(name, *parts, sqlite_strict=True)


def upgrade() -> None:
    """Make the tables."""
    _create_known_devices()
    _create_rollouts()
    _create_reports()


def _create_known_devices() -> None:
    _table(
        "known_devices",
        sa.Column("bundle", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("version", _number),
        sa.Column("measured", sa.LargeBinary, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
    )


def _create_rollouts() -> None:
    _table(
        "rollouts",
        sa.Column("number", _number, primary_key=True, autoincrement=False),
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("active", sa.Text, unique=True),
        *(sa.Column(name, _number, nullable=False) for name in ("version", "baseline")),
        sa.Column("plan", sa.LargeBinary, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("salt", "state")),
        sa.Column("stage", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("since", "started", "started_by", "why")),
        sa.Column("revision", _number, nullable=False),
    )
    op.create_index("rollouts_by_bundle", "rollouts", ["bundle", "number"])


def _create_reports() -> None:
    _table(
        "rollout_devices",
        sa.Column("rollout", _number, primary_key=True, autoincrement=False),
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("version", _number, nullable=False),
        sa.Column("stage", sa.Integer),
        sa.Column("installed", _number),
        sa.Column("member", sa.LargeBinary, nullable=False),
    )
    columns = ["rollout", "version", "stage", "installed"]
    op.create_index("rollout_devices_by_version", "rollout_devices", columns)
    _table(
        "rollout_counts",
        sa.Column("rollout", _number, primary_key=True, autoincrement=False),
        sa.Column("version", _number, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("tag", "signal")),
        *(sa.Column(name, _number, nullable=False) for name in ("devices", "events")),
        *(sa.Column(name, _real, nullable=False) for name in ("total", "squares")),
    )

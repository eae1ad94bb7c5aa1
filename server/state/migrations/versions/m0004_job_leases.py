"""Leases of packaging jobs, so that many machines share them, and what the machines know of jobs and of data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"

_real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")


def upgrade() -> None:
    """Add the columns, and the table of machines."""
    for name in ("priority", "attempt", "lost"):
        op.add_column("jobs", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("lease_until_s", _real))
    for name in ("owner", "progress", "log", "checkpoint", "bundle"):
        op.add_column("jobs", sa.Column(name, sa.Text))
    op.create_table(
        "job_machines",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("seen_s", _real, nullable=False),
        sqlite_strict=True,
    )

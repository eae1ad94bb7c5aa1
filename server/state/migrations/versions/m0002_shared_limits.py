"""Limits that several servers keep together: failed enrolments of an address, requests at once of a client."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"

_real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "enrolment_attempts",
        sa.Column("address", sa.Text, primary_key=True),
        sa.Column("began_s", _real, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "share_leases",
        sa.Column("client", sa.Text, primary_key=True),
        sa.Column("replica", sa.Text, primary_key=True),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("expires_s", _real, nullable=False),
        sqlite_strict=True,
    )

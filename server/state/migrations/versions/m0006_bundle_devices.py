"""The devices of a bundle get a name that tells them from the fleet's: ``known_devices`` becomes ``bundle_devices``.

Servers of before go on while they are replaced one by one: on PostgreSQL a view has the old name, and takes what they
write.
"""

from __future__ import annotations

from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    """Rename the table."""
    op.rename_table("known_devices", "bundle_devices")
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER INDEX known_devices_pkey RENAME TO bundle_devices_pkey")
        op.execute("CREATE VIEW known_devices AS SELECT * FROM bundle_devices")

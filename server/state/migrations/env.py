"""Alembic's entry: runs the history on the connection that ``schema.upgrade`` hands over, in its transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()

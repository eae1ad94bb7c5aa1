"""The history of the database's schema, for SQLite and PostgreSQL; Alembic runs it."""

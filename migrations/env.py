"""What alembic runs, on the connection and in the transaction that `agentapp.storage.migrate` has opened."""

from __future__ import annotations

from alembic import context

from agentapp.storage.operator_models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("agentapp: migrations are run with `agentapp db upgrade`")

# The transaction is already open and holds the lock, so that whatever number of revisions is
# applied, all of them are kept or none. Batch mode is how SQLite alters a table.
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
context.run_migrations()

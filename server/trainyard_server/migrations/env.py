"""Alembic environment: in the connection that it is handed, one transaction for all."""

from alembic import context

from trainyard_server.storage.db.base.columns import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,  # SQLite changes a table by copying it
)
with context.begin_transaction():
    context.run_migrations()

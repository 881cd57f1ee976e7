"""Runs the migrations on the connection that `migrate_database` passes."""

from alembic import context

from shardlab.server.database import people_tables
from shardlab.server.database.tables import Base

assert people_tables  # its tables are part of the metadata once it is imported

# Alembic executes this file with a context. Imported without one, it does nothing.
if hasattr(context, "config"):
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        # SQLite changes a column by copying its table; Alembic writes that for us.
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()

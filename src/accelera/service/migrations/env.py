"""Alembic's environment: migrations run in the transaction of the process that opens the database."""

from __future__ import annotations

from alembic import context

from accelera.service.database import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()

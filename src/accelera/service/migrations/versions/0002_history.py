"""Digests of questions, so that one is answered once; headlines and jobs of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; rows that are there already have none of it."""
    op.add_column("jobs", sa.Column("digest", sa.String(64)))
    op.create_index("jobs_by_digest", "jobs", ["digest", "state"])
    op.add_column("runs", sa.Column("headline", sa.String(500), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("job", sa.String(32)))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_index("jobs_by_digest", "jobs")
    for table, column in (("runs", "job"), ("runs", "headline"), ("jobs", "digest")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)

"""Traces, jobs and runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "traces",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("model_type", sa.String(100), nullable=False),
        sa.Column("accesses", sa.BigInteger, nullable=False),
        sa.Column("buffers", sa.BigInteger, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("footprint_bytes", sa.BigInteger, nullable=False),
        sa.Column("parquet", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("finished_s", sa.Float),
        sa.Column("worker", sa.String(64)),
        sa.Column("lease_until_s", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("cancelling", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Float, nullable=False),
        sa.Column("doing", sa.String(200), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("error", sa.Text),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "created_s"])
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False, index=True),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("figures", sa.JSON, nullable=False),
        sa.Column("trace", sa.String(64), sa.ForeignKey("traces.digest", ondelete="SET NULL")),
    )


def downgrade() -> None:
    """Drop the tables."""
    for table in ("runs", "jobs", "traces"):
        op.drop_table(table)

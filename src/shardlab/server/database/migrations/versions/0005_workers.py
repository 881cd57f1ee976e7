"""The worker processes of all machines, as they have registered."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "worker",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("shardlab_version", sa.String(40), nullable=False),
        sa.Column("jax_version", sa.String(40), nullable=False),
        sa.Column("judge_version", sa.String(40), nullable=False),
        sa.Column("catalogue_digest", sa.String(64), nullable=False),
        sa.Column("sandbox_level", sa.String(1), nullable=False),
        sa.Column("n_slots", sa.Integer(), nullable=False),
        sa.Column("can_judge", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("heartbeat", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
        sa.UniqueConstraint("name", name="uq_worker_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_worker_heartbeat", "worker", ["heartbeat"])

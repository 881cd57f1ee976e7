"""Verdicts by judge version, what a server expects of its workers, and PgQueuer's tables.

On PostgreSQL alone: PgQueuer's own tables, in the form of the release that `pyproject.toml` names.
A later form of them is a later migration, which calls `Queries.apply_upgrade`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Change the tables. Every verdict that is there stays, with an unknown judge version."""
    _key_verdicts()
    op.add_column("job", sa.Column("dispatch_id", sa.BigInteger(), nullable=True))
    op.create_index("ix_job_dispatch_id", "job", ["dispatch_id"])
    op.create_table(
        "server_release",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shardlab_version", sa.String(40), nullable=False),
        sa.Column("jax_version", sa.String(40), nullable=False),
        sa.Column("judge_version", sa.String(40), nullable=False),
        sa.Column("catalogue_digest", sa.String(64), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_server_release"),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Here: nothing else of a server on SQLite needs PgQueuer.
        from shardlab.server.jobs.pgqueuer_tables import install_query

        op.get_bind().exec_driver_sql(install_query())


def _key_verdicts() -> None:
    # SQLite cannot change a primary key: Alembic copies the table.
    with op.batch_alter_table("judgement") as table:
        table.add_column(
            sa.Column("judge_version", sa.String(40), nullable=False, server_default="")
        )
        table.add_column(
            sa.Column("is_current", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        table.drop_constraint("pk_judgement", type_="primary")
        table.create_primary_key("pk_judgement", ["submission", "judge_version"])
    op.create_index(
        "uq_judgement_current",
        "judgement",
        ["submission"],
        unique=True,
        sqlite_where=sa.text("is_current"),
        postgresql_where=sa.text("is_current"),
    )

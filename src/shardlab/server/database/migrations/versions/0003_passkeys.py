"""Passkeys of people, and the challenges that wait for a signature."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "passkey",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(60), nullable=False),
        sa.Column("credential_id", sa.LargeBinary(), nullable=False),
        sa.Column("credential_data", sa.LargeBinary(), nullable=False),
        sa.Column("user_handle", sa.LargeBinary(), nullable=False),
        sa.Column("rp_id", sa.String(253), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("is_backed_up", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=True),
        sa.Column("refused", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_passkey_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_passkey"),
        sa.UniqueConstraint("credential_id", name="uq_passkey_credential_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_passkey_person", "passkey", ["person"])
    op.create_table(
        "passkey_challenge",
        sa.Column("challenge_hash", sa.String(64), nullable=False),
        sa.Column("binding_hash", sa.String(64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("challenge_hash", name="pk_passkey_challenge"),
    )

"""Catalogues that teachers upload, and the classes that see them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the tables, and remember the version that a submission is judged with."""
    op.create_table(
        "catalogue",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(80), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_catalogue_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_catalogue"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_catalogue_person", "catalogue", ["person"])
    op.create_table(
        "catalogue_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("catalogue", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("n_problems", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("archive", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["catalogue"],
            ["catalogue.id"],
            name="fk_catalogue_version_catalogue",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_catalogue_version"),
        sa.UniqueConstraint("catalogue", "digest", name="uq_catalogue_version_catalogue_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_catalogue_version_digest", "catalogue_version", ["digest"])
    op.create_table(
        "class_catalogue",
        sa.Column("course_class", sa.Integer(), nullable=False),
        sa.Column("catalogue", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["course_class"],
            ["course_class.id"],
            name="fk_class_catalogue_course_class",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["catalogue"],
            ["catalogue.id"],
            name="fk_class_catalogue_catalogue",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("course_class", "catalogue", name="pk_class_catalogue"),
    )
    op.create_index("ix_class_catalogue_catalogue", "class_catalogue", ["catalogue"])
    op.add_column("submission", sa.Column("catalogue_version", sa.Integer(), nullable=True))

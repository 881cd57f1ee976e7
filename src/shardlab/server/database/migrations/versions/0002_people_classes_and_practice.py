"""People and their sessions, classes, submissions and drafts.

A released migration is never edited, only followed by another: databases in the field were created
with it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    _create_accounts()
    _create_submissions()
    _create_practice()
    _create_classes()


def _create_accounts() -> None:
    op.create_table(
        "person",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("name_key", sa.String(160), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("password_hash", sa.String(200), nullable=False),
        sa.Column("must_change_password", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("signed_in", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_person"),
        sa.UniqueConstraint("name_key", name="uq_person_name_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "session",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.Column("browser", sa.String(80), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_session_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_session"),
        sa.UniqueConstraint("token_hash", name="uq_session_token_hash"),
    )
    op.create_index("ix_session_person", "session", ["person"])
    op.create_table(
        "api_token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(60), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("can_submit", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_api_token_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_api_token"),
        sa.UniqueConstraint("token_hash", name="uq_api_token_token_hash"),
    )
    op.create_index("ix_api_token_person", "api_token", ["person"])
    op.create_table(
        "rate_limit",
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("window", sa.Integer(), nullable=False),
        sa.Column("n_requests", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_rate_limit"),
    )


def _create_submissions() -> None:
    op.create_table(
        "source",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_source"),
    )
    op.create_table(
        "submission",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("catalogue", sa.String(400), nullable=False),
        sa.Column("problem", sa.String(100), nullable=False),
        sa.Column("content_version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(6), nullable=False),
        sa.Column("seed", sa.String(20), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("handed_in", sa.String(24), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_submission_person", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["source"], ["source.digest"], name="fk_submission_source"),
        sa.PrimaryKeyConstraint("number", name="pk_submission"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_submission_person_catalogue_problem", "submission", ["person", "catalogue", "problem"]
    )
    op.create_table(
        "judgement",
        sa.Column("submission", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(40), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("judged", sa.String(24), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["submission"],
            ["submission.number"],
            name="fk_judgement_submission",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("submission", name="pk_judgement"),
    )


def _create_practice() -> None:
    op.create_table(
        "progress",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("catalogue", sa.String(400), nullable=False),
        sa.Column("problem", sa.String(100), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("started", sa.String(24), nullable=False),
        sa.Column("hints", sa.Integer(), nullable=False),
        sa.Column("solution_requests", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_progress_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_progress"),
        sa.UniqueConstraint(
            "person", "catalogue", "problem", name="uq_progress_person_catalogue_problem"
        ),
    )
    op.create_table(
        "draft",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("catalogue", sa.String(400), nullable=False),
        sa.Column("problem", sa.String(100), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("saved", sa.String(24), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_draft_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_draft"),
        sa.UniqueConstraint(
            "person", "catalogue", "problem", name="uq_draft_person_catalogue_problem"
        ),
    )


def _create_classes() -> None:
    op.create_table(
        "course_class",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(80), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("join_nonce", sa.String(40), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_course_class_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_course_class"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "class_member",
        sa.Column("course_class", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("joined", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["course_class"],
            ["course_class.id"],
            name="fk_class_member_course_class",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_class_member_person", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("course_class", "person", name="pk_class_member"),
    )
    op.create_index("ix_class_member_person", "class_member", ["person"])
    op.create_table(
        "comment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("submission", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["person.id"], name="fk_comment_person", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["submission"], ["submission.number"], name="fk_comment_submission", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_comment"),
    )
    op.create_index("ix_comment_submission", "comment", ["submission"])

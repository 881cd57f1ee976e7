"""The tables of people: accounts, sessions, tokens, classes, and what people have submitted.

Every row that belongs to one person has a column `person`, or a foreign key to a row that has one.
Export and deletion of an account follow these columns, so a new table takes part by having one.
"""

from __future__ import annotations

from typing import Annotated

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    and_,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from shardlab.server.database.tables import Base

_PersonKey = Annotated[int, mapped_column(ForeignKey("person.id", ondelete="CASCADE"))]
_NEVER_REUSED = {"sqlite_autoincrement": True}  # else SQLite gives a deleted row's id to a new one


class PersonRow(Base):
    """An account."""

    __tablename__ = "person"
    __table_args__ = (_NEVER_REUSED,)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40))
    name_key: Mapped[str] = mapped_column(String(160), unique=True)  # folded: Ada and ada are one
    role: Mapped[str] = mapped_column(String(10))
    password_hash: Mapped[str] = mapped_column(String(200))
    must_change_password: Mapped[bool] = mapped_column(default=False)
    created: Mapped[float]
    signed_in: Mapped[float | None]


class SessionRow(Base):
    """A browser that is signed in. The token is in its cookie; here is only the hash."""

    __tablename__ = "session"
    __table_args__ = (Index("ix_session_person", "person"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created: Mapped[float]
    last_used: Mapped[float]
    browser: Mapped[str] = mapped_column(String(80))  # in words, such as Firefox on Linux


class ApiTokenRow(Base):
    """A token for scripts; it is shown once, and only its hash is stored."""

    __tablename__ = "api_token"
    __table_args__ = (Index("ix_api_token_person", "person"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    label: Mapped[str] = mapped_column(String(60))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    can_submit: Mapped[bool]
    created: Mapped[float]
    last_used: Mapped[float | None]


class PasskeyRow(Base):
    """A passkey of a person: the public half of a key that their authenticator has."""

    __tablename__ = "passkey"
    __table_args__ = (Index("ix_passkey_person", "person"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    label: Mapped[str] = mapped_column(String(60))
    credential_id: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    credential_data: Mapped[bytes] = mapped_column(LargeBinary)  # WebAuthn's, with the public key
    user_handle: Mapped[bytes] = mapped_column(LargeBinary)
    rp_id: Mapped[str] = mapped_column(String(253))  # the host name that it belongs to
    sign_count: Mapped[int] = mapped_column(BigInteger)  # 32 bits without a sign
    is_backed_up: Mapped[bool]
    created: Mapped[float]
    last_used: Mapped[float | None]
    refused: Mapped[float | None]  # when the counter went back


class PasskeyChallengeRow(Base):
    """A challenge that waits for its signature; it belongs to a browser, signed in or not."""

    __tablename__ = "passkey_challenge"

    challenge_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    binding_hash: Mapped[str] = mapped_column(String(64))
    created: Mapped[float]


class RateLimitRow(Base):
    """How often something was requested in the current window of time."""

    __tablename__ = "rate_limit"

    subject: Mapped[str] = mapped_column(String(120), primary_key=True)
    window: Mapped[int]  # number of the window since 1970
    n_requests: Mapped[int]


class ClassRow(Base):
    """A class; `person` is its teacher."""

    __tablename__ = "course_class"
    __table_args__ = (_NEVER_REUSED,)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    title: Mapped[str] = mapped_column(String(80))
    created: Mapped[float]
    join_nonce: Mapped[str] = mapped_column(String(40))  # part of the join link; empty: closed


class ClassMemberRow(Base):
    """A learner in a class."""

    __tablename__ = "class_member"
    __table_args__ = (Index("ix_class_member_person", "person"),)

    course_class: Mapped[int] = mapped_column(
        ForeignKey("course_class.id", ondelete="CASCADE"), primary_key=True
    )
    person: Mapped[int] = mapped_column(
        ForeignKey("person.id", ondelete="CASCADE"), primary_key=True
    )
    joined: Mapped[float]


class CatalogueRow(Base):
    """A teacher's own catalogue; `person` is its teacher."""

    __tablename__ = "catalogue"
    __table_args__ = (Index("ix_catalogue_person", "person"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    title: Mapped[str] = mapped_column(String(80))
    created: Mapped[float]


class CatalogueVersionRow(Base):
    """One upload of a catalogue, and what its audit found."""

    __tablename__ = "catalogue_version"
    __table_args__ = (
        UniqueConstraint("catalogue", "digest"),
        Index("ix_catalogue_version_digest", "digest"),
        _NEVER_REUSED,
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    catalogue: Mapped[int] = mapped_column(ForeignKey("catalogue.id", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(
        String(64)
    )  # SHA-256 of the names and contents of its files
    created: Mapped[float]
    n_problems: Mapped[int]
    state: Mapped[str] = mapped_column(String(10))  # waiting, passed, failed
    report: Mapped[str] = mapped_column(Text)  # JSON: the faults that the audit found
    archive: Mapped[bytes] = mapped_column(LargeBinary)  # a zip file of exactly these files


class ClassCatalogueRow(Base):
    """A catalogue that the members of a class can see."""

    __tablename__ = "class_catalogue"
    __table_args__ = (Index("ix_class_catalogue_catalogue", "catalogue"),)

    course_class: Mapped[int] = mapped_column(
        ForeignKey("course_class.id", ondelete="CASCADE"), primary_key=True
    )
    catalogue: Mapped[int] = mapped_column(
        ForeignKey("catalogue.id", ondelete="CASCADE"), primary_key=True
    )


class SourceRow(Base):
    """The text of submissions. Equal sources are one row, of all people together."""

    __tablename__ = "source"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)  # compressed with zlib


class SubmissionRow(Base):
    """One submission; it is stored before it is judged."""

    __tablename__ = "submission"
    __table_args__ = (
        Index("ix_submission_person_catalogue_problem", "person", "catalogue", "problem"),
        _NEVER_REUSED,
    )

    number: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    catalogue: Mapped[str] = mapped_column(String(400))
    problem: Mapped[str] = mapped_column(String(100))
    content_version: Mapped[int]
    kind: Mapped[str] = mapped_column(String(6))
    seed: Mapped[str] = mapped_column(String(20))  # up to 63 bits, as decimal digits
    source: Mapped[str] = mapped_column(ForeignKey("source.digest"))
    handed_in: Mapped[str] = mapped_column(String(24))  # as the terminal's store writes times
    # Of an uploaded catalogue, the version that it is judged with. No foreign key: a submission
    # outlives its catalogue.
    catalogue_version: Mapped[int | None]


class JudgementRow(Base):
    """The verdict of one version of the judge on a submission.

    A verdict that counts is never replaced: a newer judge adds a row. `is_current` is the one that
    people see, of at most one row of each submission.
    """

    __tablename__ = "judgement"
    __table_args__ = (
        Index(
            "uq_judgement_current",
            "submission",
            unique=True,
            sqlite_where=text("is_current"),
            postgresql_where=text("is_current"),
        ),
    )

    submission: Mapped[int] = mapped_column(
        ForeignKey("submission.number", ondelete="CASCADE"), primary_key=True
    )
    # `judge/judge_version.py`; empty for a verdict from before versions were stored.
    judge_version: Mapped[str] = mapped_column(String(40), primary_key=True, default="")
    is_current: Mapped[bool] = mapped_column(default=True)
    code: Mapped[str] = mapped_column(String(40))
    passed: Mapped[bool]
    counts: Mapped[bool]
    judged: Mapped[str] = mapped_column(String(24))
    body: Mapped[bytes] = mapped_column(LargeBinary)  # JSON, compressed with zlib


# Joins a submission with the verdict that people see.
CURRENT_VERDICT = and_(JudgementRow.submission == SubmissionRow.number, JudgementRow.is_current)


class ProgressRow(Base):
    """What a person has seen of a problem beside submitting: hints, requests for the solution."""

    __tablename__ = "progress"
    __table_args__ = (UniqueConstraint("person", "catalogue", "problem"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    catalogue: Mapped[str] = mapped_column(String(400))
    problem: Mapped[str] = mapped_column(String(100))
    path: Mapped[str] = mapped_column(Text, default="")  # of a solution file; the pages have none
    started: Mapped[str] = mapped_column(String(24), default="")
    hints: Mapped[int] = mapped_column(default=0)
    solution_requests: Mapped[int] = mapped_column(default=0)


class DraftRow(Base):
    """What the editor of a problem holds, not submitted yet."""

    __tablename__ = "draft"
    __table_args__ = (UniqueConstraint("person", "catalogue", "problem"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    catalogue: Mapped[str] = mapped_column(String(400))
    problem: Mapped[str] = mapped_column(String(100))
    source: Mapped[str] = mapped_column(Text)
    saved: Mapped[str] = mapped_column(String(24))


class CommentRow(Base):
    """A remark about a submission; `person` is its author."""

    __tablename__ = "comment"
    __table_args__ = (Index("ix_comment_submission", "submission"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[_PersonKey]
    submission: Mapped[int] = mapped_column(ForeignKey("submission.number", ondelete="CASCADE"))
    text: Mapped[str] = mapped_column(Text)
    created: Mapped[float]

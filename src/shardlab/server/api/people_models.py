"""The bodies of requests and responses about people, as the OpenAPI schema shows them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from shardlab.server.api.api_models import ApiModel
from shardlab.server.people.class_records import CellStatus
from shardlab.server.people.classes import MAX_COMMENT, MAX_TITLE
from shardlab.server.person import Role

# A row's id: SQLite and PostgreSQL have 64 bits, and JSON's numbers fewer.
RowId = Annotated[int, Field(ge=1, le=2**53 - 1)]
Password = Annotated[str, StringConstraints(max_length=512)]
# An attestation with its certificates has a few kilobytes.
Base64Text = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,16384}={0,2}$")]
Title = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TITLE)]


class AccountBody(BaseModel):
    """The person who sends the request."""

    id: int
    name: str
    role: Role


class NewPassword(ApiModel):
    """A change of the password."""

    current_password: Password
    password: Password


class PasswordProof(ApiModel):
    """The password, to confirm what cannot be undone."""

    current_password: Password


class SessionBody(BaseModel):
    """A browser that is signed in."""

    id: int
    browser: str
    created: float
    last_used: float


class NewToken(ApiModel):
    """A token to create."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=60)]
    can_submit: bool = False


class TokenBody(BaseModel):
    """A token for scripts."""

    id: int
    label: str
    can_submit: bool
    created: float
    last_used: float | None


class CreatedToken(BaseModel):
    """A new token; it is not shown again."""

    token: str


class PasskeyBody(BaseModel):
    """A passkey of the account."""

    id: int
    label: str
    host: str = Field(description="The host name under which it signs in.")
    is_synced: bool = Field(description="Whether a password manager copies it to other devices.")
    created: float
    last_used: float | None
    refused: float | None = Field(description="When its counter went back: a copy may exist.")


class PasskeyCreation(BaseModel):
    """What the browser makes a passkey from; bytes are base64url."""

    challenge: str
    rp_id: str
    user_handle: str
    user_name: str
    algorithms: list[int] = Field(description="COSE numbers, best first.")
    exclude_credentials: list[str]
    timeout_ms: int


class NewPasskeyBody(ApiModel):
    """A passkey that an authenticator has made; bytes are base64url."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=60)]
    client_data: Base64Text
    attestation_object: Base64Text


class PasskeyRequest(BaseModel):
    """What the browser signs in with; bytes are base64url."""

    challenge: str
    rp_id: str
    timeout_ms: int


class PasskeySignIn(ApiModel):
    """What an authenticator has signed; bytes are base64url."""

    credential_id: Base64Text
    client_data: Base64Text
    authenticator_data: Base64Text
    signature: Base64Text
    user_handle: Base64Text
    next: Annotated[str, StringConstraints(max_length=2000)] = ""


class SignedInBody(BaseModel):
    """Where the browser goes after the sign-in."""

    next: str


class ClassBody(BaseModel):
    """A class."""

    id: int
    title: str
    teacher: str
    n_members: int
    is_mine: bool
    is_open: bool


class NewClass(ApiModel):
    """A class to create, or its new title."""

    title: Title


class CellBody(BaseModel):
    """What a member has done with a problem."""

    problem: str
    status: CellStatus
    n_submissions: int
    submission: int | None


class MemberBody(BaseModel):
    """A member of a class; problems without a submission are left out."""

    id: int
    name: str
    joined: float
    n_solved: int
    problems: list[CellBody]


class JoinLinkBody(BaseModel):
    """The path of the join link; null if nobody can join."""

    path: str | None


class CommentBody(BaseModel):
    """A remark about a submission."""

    id: int
    author: str
    text: str
    created: float
    is_mine: bool


class NewComment(ApiModel):
    """A comment to add."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_COMMENT)]


class CreatedRow(BaseModel):
    """The id of what was created."""

    id: int


class ClassSubmissionBody(BaseModel):
    """A member's submission."""

    number: int
    person: int
    name: str
    problem: str
    when: str
    source: str
    verdict: str  # its code; empty until it is judged
    message: str
    comments: list[CommentBody]


class LimitBody(BaseModel):
    """A limit of the person who asks."""

    name: str
    used: int
    limit: int


class PersonBody(BaseModel):
    """An account, for the admin."""

    id: int
    name: str
    role: str
    created: float
    signed_in: float | None
    n_sessions: int


class NewRole(ApiModel):
    """The role that a person gets."""

    role: Role


class ResetPassword(BaseModel):
    """A password that was set for somebody; only this response has it."""

    password: str


class QueueBody(BaseModel):
    """The state of the job queue."""

    n_queued: int
    n_running: int
    n_failed_last_day: int

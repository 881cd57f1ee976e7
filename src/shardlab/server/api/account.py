"""The account of the person who sends the request."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from shardlab.server.api.api_models import ERROR_RESPONSES
from shardlab.server.api.people_models import (
    AccountBody,
    CreatedToken,
    LimitBody,
    NewPassword,
    NewToken,
    PasswordProof,
    RowId,
    SessionBody,
    TokenBody,
)
from shardlab.server.operations.person_usage import person_usage
from shardlab.server.people.services import People
from shardlab.server.person import Person

router = APIRouter(prefix="/api/v1/account", tags=["account"], responses=ERROR_RESPONSES)


def get_people(request: Request) -> People:
    """Return the services of server mode."""
    people: People = request.app.state.people
    return people


def get_person(request: Request) -> Person:
    """Return the signed-in person; the access table has made sure that there is one."""
    person: Person = request.state.person
    return person


PeopleServices = Annotated[People, Depends(get_people)]
SignedIn = Annotated[Person, Depends(get_person)]


@router.get("")
def read_account(person: SignedIn) -> AccountBody:
    """Return who sends the request."""
    return AccountBody(id=person.id, name=person.name, role=person.role)


@router.get("/limits")
def read_limits(request: Request, person: SignedIn, people: PeopleServices) -> list[LimitBody]:
    """Return every limit of the person, with what is used of it now."""
    limits = request.app.state.settings.limits
    return [
        LimitBody(name=row.name, used=row.used, limit=row.limit)
        for row in person_usage(people.database, people.limits, limits, person)
    ]


@router.get("/export")
def export_account(person: SignedIn, people: PeopleServices) -> dict[str, Any]:
    """Return everything that the server has about the person."""
    return people.data.export(person)


@router.post("/password", status_code=204)
def change_password(
    change: NewPassword, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    """Change the password; every other session ends."""
    people.accounts.check_password(person, change.current_password)
    people.accounts.change_password(
        person, change.password, except_session=request.state.identity.session_id
    )
    return Response(status_code=204)


@router.post("/delete", status_code=204)
def delete_account(proof: PasswordProof, person: SignedIn, people: PeopleServices) -> Response:
    """Delete the account with everything that belongs to it."""
    people.accounts.check_password(person, proof.current_password)
    people.delete_account(person)
    return Response(status_code=204)


@router.get("/sessions")
def list_sessions(person: SignedIn, people: PeopleServices) -> list[SessionBody]:
    """Return the browsers that are signed in."""
    return [SessionBody(**vars(session)) for session in people.sessions.list_sessions(person)]


@router.delete("/sessions/{session_id}", status_code=204)
def end_session(session_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    """End a session."""
    people.sessions.end_session(person, session_id)
    return Response(status_code=204)


@router.get("/tokens")
def list_tokens(person: SignedIn, people: PeopleServices) -> list[TokenBody]:
    """Return the tokens for scripts, without the tokens themselves."""
    return [TokenBody(**vars(token)) for token in people.api_tokens.list_tokens(person)]


@router.post("/tokens", status_code=201)
def create_token(token: NewToken, person: SignedIn, people: PeopleServices) -> CreatedToken:
    """Create a token and return it, once."""
    text = people.api_tokens.create(person, token.label, can_submit=token.can_submit)
    return CreatedToken(token=text)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(token_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    """Revoke a token."""
    people.api_tokens.revoke(person, token_id)
    return Response(status_code=204)

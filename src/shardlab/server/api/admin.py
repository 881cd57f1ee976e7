"""Administration: people, roles, and the state of the queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.api_models import ERROR_RESPONSES
from shardlab.server.api.people_models import (
    NewRole,
    PersonBody,
    QueueBody,
    ResetPassword,
    RowId,
)
from shardlab.server.people.refusals import Refusal

router = APIRouter(prefix="/api/v1/admin", tags=["administration"], responses=ERROR_RESPONSES)


@router.get("/people")
def list_people(
    people: PeopleServices, search: Annotated[str, Query(max_length=40)] = ""
) -> list[PersonBody]:
    """Return the accounts whose name contains a text."""
    return [PersonBody(**vars(row)) for row in people.accounts.list_people(search=search)]


@router.patch("/people/{person_id}", status_code=204)
def change_role(person_id: RowId, body: NewRole, people: PeopleServices) -> Response:
    """Change a role."""
    people.accounts.set_role(person_id, body.role)
    return Response(status_code=204)


@router.delete("/people/{person_id}", status_code=204)
def delete_person(person_id: RowId, people: PeopleServices) -> Response:
    """Delete an account with everything that belongs to it."""
    people.delete_account(people.accounts.get(person_id))
    return Response(status_code=204)


@router.post("/people/{person_id}/reset-password")
def reset_password(person_id: RowId, admin: SignedIn, people: PeopleServices) -> ResetPassword:
    """Set a random password and end the person's sessions; they choose their own at the sign-in."""
    if person_id == admin.id:
        raise Refusal("Change your own password on the page of your account.")
    return ResetPassword(password=people.accounts.reset_password(person_id))


@router.get("/queue")
def read_queue(people: PeopleServices) -> QueueBody:
    """Return how many jobs wait, run, and have failed."""
    return QueueBody(**vars(people.queue_state()))

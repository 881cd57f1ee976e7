"""Classes: members, join links, who solved what, submissions with comments."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.api_models import ERROR_RESPONSES
from shardlab.server.api.people_models import (
    CellBody,
    ClassBody,
    ClassSubmissionBody,
    CommentBody,
    CreatedRow,
    JoinLinkBody,
    MemberBody,
    NewClass,
    NewComment,
    RowId,
)
from shardlab.server.class_problems import load_class_problems
from shardlab.server.people.class_records import Member
from shardlab.server.people.services import People

router = APIRouter(prefix="/api/v1", tags=["classes"], responses=ERROR_RESPONSES)

JoinToken = Annotated[str, Path(min_length=3, max_length=80)]


@router.get("/classes")
def list_classes(person: SignedIn, people: PeopleServices) -> list[ClassBody]:
    """Return the classes that the person teaches or has joined."""
    return [ClassBody(**vars(row)) for row in people.classes.list_classes(person)]


@router.post("/classes", status_code=201)
def create_class(body: NewClass, person: SignedIn, people: PeopleServices) -> CreatedRow:
    """Create a class that the person teaches."""
    return CreatedRow(id=people.classes.create(person, body.title))


@router.get("/classes/{class_id}")
def read_class(class_id: RowId, person: SignedIn, people: PeopleServices) -> ClassBody:
    """Return one class."""
    return ClassBody(**vars(people.classes.get(class_id, person)))


@router.patch("/classes/{class_id}", status_code=204)
def rename_class(class_id: RowId, body: NewClass, people: PeopleServices) -> Response:
    """Change the title."""
    people.classes.rename(class_id, body.title)
    return Response(status_code=204)


@router.delete("/classes/{class_id}", status_code=204)
def delete_class(class_id: RowId, people: PeopleServices) -> Response:
    """Delete a class; its members keep their accounts and submissions."""
    people.classes.delete(class_id)
    return Response(status_code=204)


@router.get("/classes/{class_id}/members")
def list_members(class_id: RowId, request: Request, people: PeopleServices) -> list[MemberBody]:
    """Return the members with what they have solved."""
    assigned = people.catalogues.list_assigned(class_id)
    keys = load_class_problems(request.app.state.settings, assigned).keys
    return [_member_body(row) for row in people.classes.list_members(class_id, *keys)]


@router.delete("/classes/{class_id}/members/{person_id}", status_code=204)
def remove_member(class_id: RowId, person_id: RowId, people: PeopleServices) -> Response:
    """Remove a member, or leave the class oneself."""
    people.classes.remove_member(class_id, person_id)
    return Response(status_code=204)


@router.get("/classes/{class_id}/join-link")
def read_join_link(class_id: RowId, people: PeopleServices) -> JoinLinkBody:
    """Return the join link."""
    return _join_link(people, class_id)


@router.post("/classes/{class_id}/join-link")
def renew_join_link(class_id: RowId, people: PeopleServices) -> JoinLinkBody:
    """Replace the join link by a new one."""
    people.classes.renew_join_link(class_id)
    return _join_link(people, class_id)


@router.delete("/classes/{class_id}/join-link", status_code=204)
def close_join_link(class_id: RowId, people: PeopleServices) -> Response:
    """End the join link."""
    people.classes.close_join_link(class_id)
    return Response(status_code=204)


@router.post("/join/{token}")
def join_class(token: JoinToken, person: SignedIn, people: PeopleServices) -> CreatedRow:
    """Join the class of a join link, and return its id."""
    return CreatedRow(id=people.classes.join(token, person))


@router.get("/classes/{class_id}/submissions/{number}")
def read_submission(
    class_id: RowId, number: RowId, person: SignedIn, people: PeopleServices
) -> ClassSubmissionBody:
    """Return a member's submission with its comments."""
    submission = people.classes.load_submission(class_id, number, person)
    verdict = submission.judgement.verdict if submission.judgement else None
    return ClassSubmissionBody(
        number=number,
        person=submission.person,
        name=submission.name,
        problem=submission.problem,
        when=submission.when,
        source=submission.source,
        verdict=verdict.code if verdict else "",
        message=verdict.what if verdict else "",
        comments=[CommentBody(**vars(comment)) for comment in submission.comments],
    )


@router.post("/classes/{class_id}/submissions/{number}/comments", status_code=201)
def add_comment(
    class_id: RowId, number: RowId, body: NewComment, person: SignedIn, people: PeopleServices
) -> CreatedRow:
    """Add a comment."""
    return CreatedRow(id=people.classes.add_comment(number, person, body.text))


@router.delete("/classes/{class_id}/submissions/{number}/comments/{comment_id}", status_code=204)
def delete_comment(
    class_id: RowId, number: RowId, comment_id: RowId, person: SignedIn, people: PeopleServices
) -> Response:
    """Delete one of the person's own comments."""
    people.classes.delete_comment(number, comment_id, person)
    return Response(status_code=204)


def _join_link(people: People, class_id: int) -> JoinLinkBody:
    token = people.classes.join_token(class_id)
    return JoinLinkBody(path=None if token is None else f"/join/{token}")


def _member_body(member: Member) -> MemberBody:
    return MemberBody(
        id=member.id,
        name=member.name,
        joined=member.joined,
        n_solved=member.n_solved,
        problems=[
            CellBody(problem=problem, **vars(cell)) for problem, cell in member.cells.items()
        ],
    )

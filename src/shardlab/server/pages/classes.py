"""Classes: the list, the matrix of who solved what, a submission with comments, joining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from shardlab.judge.verdict import VERDICTS
from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.people_models import RowId
from shardlab.server.class_problems import ClassProblem, load_class_catalogue
from shardlab.server.page_rendering import render_page
from shardlab.server.pages.sign_in import TextField
from shardlab.server.people.classes import (
    MAX_COMMENT,
    ClassSubmission,
    ClassSummary,
    Member,
    matrix_csv,
)
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.services import People
from shardlab.server.person import Person

router = APIRouter(include_in_schema=False)

CommentField = Annotated[str, Form(max_length=2 * MAX_COMMENT)]
JoinLinkChange = Annotated[Literal["renew", "close"], Form()]
NOBODY = Person(id=-1, name="", role="learner")  # reads a join page before the sign-in


@dataclass(frozen=True, kw_only=True)
class ClassesPage:
    """The context of classes.html."""

    classes: tuple[ClassSummary, ...]
    can_create: bool
    message: str = ""
    title: str = "Classes"


@dataclass(frozen=True, kw_only=True)
class TrackColumns:
    """The problems of one track, side by side in the matrix."""

    title: str
    problems: tuple[ClassProblem, ...]


@dataclass(frozen=True, kw_only=True)
class ClassPage:
    """The context of class.html. A learner sees their own row only."""

    summary: ClassSummary
    is_teacher: bool
    members: tuple[Member, ...]
    tracks: tuple[TrackColumns, ...]
    join_url: str
    message: str = ""

    @property
    def title(self) -> str:
        return self.summary.title

    @property
    def n_problems(self) -> int:
        return sum(len(track.problems) for track in self.tracks)

    def n_solvers(self, problem: str) -> int:
        """Return how many members have solved a problem."""
        return sum(member.cell(problem).status == "solved" for member in self.members)


@dataclass(frozen=True, kw_only=True)
class ClassSubmissionPage:
    """The context of class_submission.html."""

    summary: ClassSummary
    submission: ClassSubmission
    problem_title: str
    verdict_label: str
    verdict_text: str
    message: str = ""
    draft: str = ""  # of a comment that was refused

    @property
    def title(self) -> str:
        return f"{self.submission.name}: {self.problem_title}"


@dataclass(frozen=True, kw_only=True)
class JoinPage:
    """The context of join.html."""

    summary: ClassSummary
    path: str
    is_signed_in: bool
    message: str = ""

    @property
    def title(self) -> str:
        return f"Join {self.summary.title}"


# ------------------------------------------------------------------------------------- classes


@router.get("/classes")
def show_classes(request: Request, person: SignedIn, people: PeopleServices) -> Response:
    classes = people.classes.list_classes(person)
    page = ClassesPage(classes=classes, can_create=person.is_teacher)
    return render_page(request, "classes.html", page)


@router.post("/classes")
def create_class(
    request: Request, person: SignedIn, people: PeopleServices, title: TextField = ""
) -> Response:
    try:
        class_id = people.classes.create(person, title)
    except Refusal as error:
        classes = people.classes.list_classes(person)
        page = ClassesPage(classes=classes, can_create=True, message=error.message)
        return render_page(request, "classes.html", page, status=422)
    return RedirectResponse(f"/classes/{class_id}", 303)


def _class_page(
    request: Request, people: People, person: Person, class_id: int, message: str = ""
) -> ClassPage:
    summary = people.classes.get(class_id, person)
    is_teacher = summary.is_mine or person.is_admin
    catalogue = load_class_catalogue(request.app.state.settings)
    members = people.classes.list_members(class_id, catalogue.key)
    if not is_teacher:
        members = tuple(member for member in members if member.id == person.id)
    token = people.classes.join_token(class_id) if is_teacher else None
    return ClassPage(
        summary=summary,
        is_teacher=is_teacher,
        members=members,
        tracks=tuple(
            TrackColumns(title=title, problems=tuple(problems))
            for title, problems in groupby(catalogue.problems, lambda problem: problem.track)
        ),
        join_url=_absolute_url(request, f"/join/{token}") if token else "",
        message=message,
    )


def _absolute_url(request: Request, path: str) -> str:
    # A proxy that speaks HTTPS may not say so; the settings do. The guard has checked the host.
    scheme = "https" if request.app.state.settings.is_https else "http"
    return f"{scheme}://{request.headers['host']}{path}"


@router.get("/classes/{class_id}")
def show_class(
    class_id: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    return render_page(request, "class.html", _class_page(request, people, person, class_id))


@router.post("/classes/{class_id}/rename")
def rename_class(
    class_id: RowId,
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    title: TextField = "",
) -> Response:
    try:
        people.classes.rename(class_id, title)
    except Refusal as error:
        page = _class_page(request, people, person, class_id, error.message)
        return render_page(request, "class.html", page, status=422)
    return RedirectResponse(f"/classes/{class_id}", 303)


@router.post("/classes/{class_id}/delete")
def delete_class(class_id: RowId, people: PeopleServices) -> Response:
    people.classes.delete(class_id)
    return RedirectResponse("/classes", 303)


@router.post("/classes/{class_id}/join-link")
def change_join_link(
    class_id: RowId, people: PeopleServices, change: JoinLinkChange = "renew"
) -> Response:
    if change == "renew":
        people.classes.renew_join_link(class_id)
    else:
        people.classes.close_join_link(class_id)
    return RedirectResponse(f"/classes/{class_id}", 303)


@router.post("/classes/{class_id}/members/{person_id}/remove")
def remove_member(class_id: RowId, person_id: RowId, people: PeopleServices) -> Response:
    people.classes.remove_member(class_id, person_id)
    return RedirectResponse(f"/classes/{class_id}", 303)


@router.post("/classes/{class_id}/leave")
def leave_class(class_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    people.classes.remove_member(class_id, person.id)
    return RedirectResponse("/classes", 303)


@router.get("/classes/{class_id}/matrix.csv")
def export_matrix(class_id: RowId, request: Request, people: PeopleServices) -> Response:
    catalogue = load_class_catalogue(request.app.state.settings)
    members = people.classes.list_members(class_id, catalogue.key)
    text = matrix_csv(members, [problem.slug for problem in catalogue.problems])
    headers = {"content-disposition": f'attachment; filename="class-{class_id}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


# --------------------------------------------------------------------------------- submissions


def _submission_page(
    request: Request, people: People, person: Person, ids: tuple[int, int]
) -> ClassSubmissionPage:
    class_id, number = ids
    submission = people.classes.load_submission(class_id, number, person)
    titles: Mapping[str, str] = load_class_catalogue(request.app.state.settings).titles
    verdict = submission.judgement.verdict if submission.judgement else None
    return ClassSubmissionPage(
        summary=people.classes.get(class_id, person),
        submission=submission,
        problem_title=titles.get(submission.problem, submission.problem),
        verdict_label=VERDICTS.get(verdict.code, "") if verdict else "not judged yet",
        verdict_text=verdict.what if verdict else "",
    )


@router.get("/classes/{class_id}/submissions/{number}")
def show_submission(
    class_id: RowId, number: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    page = _submission_page(request, people, person, (class_id, number))
    return render_page(request, "class_submission.html", page)


@router.post("/classes/{class_id}/submissions/{number}/comments")
def add_comment(
    class_id: RowId,
    number: RowId,
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    text: CommentField = "",
) -> Response:
    try:
        people.classes.add_comment(number, person, text)
    except Refusal as error:
        page = _submission_page(request, people, person, (class_id, number))
        page = replace(page, message=error.message, draft=text)
        return render_page(request, "class_submission.html", page, status=422)
    return RedirectResponse(f"/classes/{class_id}/submissions/{number}#comments", 303)


@router.post("/classes/{class_id}/submissions/{number}/comments/{comment_id}/delete")
def delete_comment(
    class_id: RowId, number: RowId, comment_id: RowId, person: SignedIn, people: PeopleServices
) -> Response:
    people.classes.delete_comment(number, comment_id, person)
    return RedirectResponse(f"/classes/{class_id}/submissions/{number}#comments", 303)


# ------------------------------------------------------------------------------------- joining


def _join_page(request: Request, people: People, token: str, message: str = "") -> JoinPage:
    reader = request.state.person or NOBODY
    return JoinPage(
        summary=people.classes.get(people.classes.find_by_token(token), reader),
        path=f"/join/{token}",
        is_signed_in=request.state.person is not None,
        message=message,
    )


@router.get("/join/{token}")
def show_join(token: str, request: Request, people: PeopleServices) -> Response:
    page = _join_page(request, people, token)
    person = request.state.person
    if person is not None and people.classes.is_member(page.summary.id, person.id):
        return RedirectResponse(f"/classes/{page.summary.id}", 303)
    return render_page(request, "join.html", page)


@router.post("/join/{token}")
def join_class(token: str, request: Request, person: SignedIn, people: PeopleServices) -> Response:
    try:
        class_id = people.classes.join(token, person)
    except Refusal as error:
        page = _join_page(request, people, token, error.message)
        return render_page(request, "join.html", page, status=422)
    return RedirectResponse(f"/classes/{class_id}", 303)

"""Classes: the list, the matrix of who solved what, a submission with comments, joining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.people_models import RowId
from shardlab.server.class_problems import ClassProblem, ClassProblems, load_class_problems
from shardlab.server.page_rendering import render_page
from shardlab.server.pages.error_response import error_response
from shardlab.server.pages.sign_in import TextField
from shardlab.server.people.class_records import (
    Attempt,
    ClassSubmission,
    ClassSummary,
    Member,
    RecentComment,
    matrix_csv,
)
from shardlab.server.people.classes import MAX_COMMENT
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.people.services import People
from shardlab.server.person import Person
from shardlab.server.practice.statement_html import highlight_python_lines

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

    def n_solved(self, member: Member) -> int:
        """Return how many problems of the track a member has solved."""
        return sum(member.cell(problem.column).status == "solved" for problem in self.problems)


MatrixView = Literal["problem", "track"]


@dataclass(frozen=True, kw_only=True)
class ClassPage:
    """The context of class.html, which the teacher sees."""

    summary: ClassSummary
    members: tuple[Member, ...]
    tracks: tuple[TrackColumns, ...]
    join_url: str
    catalogues: tuple[tuple[int, str, int], ...]  # of the teacher: id, title, number of problems
    assignable: tuple[tuple[int, str], ...]  # id and title of others that can be added
    view: MatrixView = "problem"
    message: str = ""

    @property
    def title(self) -> str:
        return self.summary.title

    @property
    def n_problems(self) -> int:
        return sum(len(track.problems) for track in self.tracks)

    @property
    def n_solved(self) -> int:
        """Return the problems solved, summed over the members."""
        return sum(member.n_solved for member in self.members)

    @property
    def n_active(self) -> int:
        """Return how many members have submitted something."""
        return sum(bool(member.cells) for member in self.members)

    def n_solvers(self, column: str) -> int:
        """Return how many members have solved the problem of a column."""
        return sum(member.cell(column).status == "solved" for member in self.members)

    def n_solved_in(self, track: TrackColumns) -> int:
        """Return the problems of a track that were solved, summed over the members."""
        return sum(track.n_solved(member) for member in self.members)


@dataclass(frozen=True, kw_only=True)
class ClassMemberPage:
    """The context of class_member.html: what one member has done."""

    summary: ClassSummary
    member: Member
    tracks: tuple[TrackColumns, ...]
    comments: tuple[RecentComment, ...]
    titles: Mapping[str, str]  # of problems, by column
    catalogues: tuple[tuple[int, str, int], ...]  # of the teacher: id, title, number of problems
    is_own: bool

    @property
    def title(self) -> str:
        return self.summary.title if self.is_own else self.member.name

    @property
    def n_problems(self) -> int:
        return sum(len(track.problems) for track in self.tracks)


@dataclass(frozen=True, kw_only=True)
class ClassSubmissionPage:
    """The context of class_submission.html."""

    summary: ClassSummary
    submission: ClassSubmission
    attempts: tuple[Attempt, ...]
    source_lines: tuple[Markup, ...]
    problem_title: str
    problem_path: str  # empty if the problem is no longer there
    verdict_label: str
    verdict_text: str
    is_own: bool
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
    class_problems = _class_problems(request, people, class_id)
    token = people.classes.join_token(class_id)
    return ClassPage(
        summary=people.classes.get(class_id, person),
        members=people.classes.list_members(class_id, *class_problems.keys),
        tracks=_track_columns(class_problems.problems),
        join_url=_absolute_url(request, f"/join/{token}") if token else "",
        catalogues=_assigned_catalogues(people, class_id),
        assignable=people.catalogues.list_assignable(class_id),
        message=message,
    )


def _class_problems(request: Request, people: People, class_id: int) -> ClassProblems:
    assigned = people.catalogues.list_assigned(class_id)
    return load_class_problems(request.app.state.settings, assigned)


def _track_columns(problems: tuple[ClassProblem, ...]) -> tuple[TrackColumns, ...]:
    return tuple(
        TrackColumns(title=title, problems=tuple(members))
        for title, members in groupby(problems, lambda problem: problem.track)
    )


def _member_page(
    request: Request, people: People, person: Person, ids: tuple[int, int]
) -> ClassMemberPage:
    class_id, member_id = ids
    class_problems = _class_problems(request, people, class_id)
    members = people.classes.list_members(class_id, *class_problems.keys)
    member = next((member for member in members if member.id == member_id), None)
    if member is None:
        raise NotThere
    return ClassMemberPage(
        summary=people.classes.get(class_id, person),
        member=member,
        tracks=_track_columns(class_problems.problems),
        comments=people.classes.list_recent_comments(class_id, member_id),
        titles={column: problem.title for column, problem in class_problems.by_column.items()},
        catalogues=_assigned_catalogues(people, class_id),
        is_own=member_id == person.id,
    )


def _assigned_catalogues(people: People, class_id: int) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (opened.id, opened.title, len(opened.catalogue.slugs))
        for opened in people.catalogues.list_assigned(class_id)
    )


def _absolute_url(request: Request, path: str) -> str:
    # A proxy that speaks HTTPS may not say so; the settings do. The guard has checked the host.
    scheme = "https" if request.app.state.settings.is_https else "http"
    return f"{scheme}://{request.headers['host']}{path}"


@router.get("/classes/{class_id}")
def show_class(
    class_id: RowId,
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    by: MatrixView = "problem",
) -> Response:
    summary = people.classes.get(class_id, person)
    if not (summary.is_mine or person.is_admin):
        # A learner sees their own work only.
        own = _member_page(request, people, person, (class_id, person.id))
        return render_page(request, "class_member.html", own)
    page = replace(_class_page(request, people, person, class_id), view=by)
    return render_page(request, "class.html", page)


@router.get("/classes/{class_id}/members/{person_id}")
def show_member(
    class_id: RowId, person_id: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    page = _member_page(request, people, person, (class_id, person_id))
    return render_page(request, "class_member.html", page)


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
    class_problems = _class_problems(request, people, class_id)
    members = people.classes.list_members(class_id, *class_problems.keys)
    text = matrix_csv(members, [problem.column for problem in class_problems.problems])
    headers = {"content-disposition": f'attachment; filename="class-{class_id}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


@router.post("/classes/{class_id}/catalogues")
def assign_catalogue(
    class_id: RowId,
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    catalogue: Annotated[int, Form(ge=1, le=2**53 - 1)],
) -> Response:
    try:
        people.catalogues.assign(class_id, catalogue)
    except Refusal as error:
        page = _class_page(request, people, person, class_id, error.message)
        return render_page(request, "class.html", page, status=422)
    return RedirectResponse(f"/classes/{class_id}", 303)


@router.post("/classes/{class_id}/catalogues/{catalogue_id}/remove")
def unassign_catalogue(class_id: RowId, catalogue_id: RowId, people: PeopleServices) -> Response:
    people.catalogues.unassign(class_id, catalogue_id)
    return RedirectResponse(f"/classes/{class_id}", 303)


# --------------------------------------------------------------------------------- submissions


def _submission_page(
    request: Request, people: People, person: Person, ids: tuple[int, int]
) -> ClassSubmissionPage:
    class_id, number = ids
    submission = people.classes.load_submission(class_id, number, person)
    problem = _class_problems(request, people, class_id).by_column.get(submission.column)
    verdict = submission.judgement.verdict if submission.judgement else None
    return ClassSubmissionPage(
        summary=people.classes.get(class_id, person),
        submission=submission,
        attempts=people.classes.list_attempts(number),
        source_lines=highlight_python_lines(submission.source),
        problem_title=problem.title if problem else submission.problem,
        problem_path=problem.path if problem else "",
        verdict_label=verdict.label if verdict else "not judged yet",
        verdict_text=verdict.what if verdict else "",
        is_own=submission.person == person.id,
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
    try:
        page = _join_page(request, people, token)
    except NotThere:
        fix = "Ask your teacher for a new one: a link ends when it is replaced or closed."
        details = {"fix": fix}
        return error_response(request, 404, "This link leads to no class.", details=details)
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

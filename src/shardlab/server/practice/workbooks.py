"""Whose work a request is about: the workbook of its person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from fastapi import FastAPI, HTTPException, Request

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue, load_catalogue
from shardlab.course.store import (
    Draft,
    PracticeSnapshot,
    PracticeStore,
    Progress,
    Submission,
    open_store,
)
from shardlab.course.workbook import Workbook
from shardlab.errors import UnknownProblem, UnknownSubmission
from shardlab.judge.judgement import Judgement
from shardlab.server.html_cache import HtmlCache
from shardlab.server.jobs.job_service import JobService
from shardlab.server.person import Person
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.settings import ServerSettings

if TYPE_CHECKING:  # local mode never loads the services of accounts, and argon2 with them
    from shardlab.server.people.services import People

# Returns the store of a person; the second argument names a catalogue as `ProgressStore` does.
OpenPracticeStore = Callable[[Person, str], PracticeStore]


def add_practice(app: FastAPI) -> None:
    """Prepare an application for the practice pages.

    In local mode the store is the terminal's. A server with accounts has all in its database.
    """
    settings: ServerSettings = app.state.settings

    def open_person_store(person: Person, catalogue: str) -> PracticeStore:
        folder = settings.data_folder
        if settings.is_local:
            return open_store(folder, catalogue)
        return PersonPracticeStore(app.state.database, folder, person.id, catalogue)

    app.state.open_practice_store = open_person_store
    app.state.catalogue = load_catalogue(settings.catalogue)
    # Read here, once: a page would read its problem from disk for each request.
    app.state.problems = app.state.catalogue.problems
    app.state.html_cache = HtmlCache()


def catalogue_key(settings: ServerSettings) -> str:
    """Return how stores name the catalogue; empty for shardlab's own."""
    return "" if settings.catalogue is None else str(Path(settings.catalogue).resolve())


def person_of(request: Request) -> Person | None:
    """Return who is signed in; in local mode always the same person."""
    person: Person | None = getattr(request.state, "person", None)
    return person


def require_person(request: Request) -> Person:
    """Return who is signed in. Raises 401."""
    person = person_of(request)
    if person is None:
        raise HTTPException(401, "Sign in to attempt this problem.")
    return person


def workbook_of(request: Request) -> Workbook:
    """Return the workbook of the person behind a request; an empty one before sign-in."""
    state = request.app.state
    catalogue: Catalogue = state.catalogue
    person = person_of(request)
    if "catalogue_id" in request.path_params:
        return _uploaded_workbook(request, require_person(request))
    if person is None:
        return Workbook(catalogue, _NobodysStore())
    open_person_store: OpenPracticeStore = state.open_practice_store
    return Workbook(catalogue, open_person_store(person, catalogue_key(state.settings)))


def _uploaded_workbook(request: Request, person: Person) -> Workbook:
    """Return a person's workbook of a teacher's catalogue, which the access table lets them see."""
    state = request.app.state
    people: People = state.people
    opened = people.catalogues.open_current(int(request.path_params["catalogue_id"]))
    folder = state.settings.data_folder
    store = PersonPracticeStore(state.database, folder, person.id, opened.key, opened.version)
    return Workbook(opened.catalogue, store)


def jobs_of(request: Request) -> JobService:
    """Return the jobs of the application."""
    jobs: JobService = request.app.state.jobs
    return jobs


def find_problem(workbook: Workbook, slug: str) -> Problem:
    """Return a problem by its exact slug; any other name is a page that does not exist."""
    try:
        return workbook.catalogue.load_problem(slug)
    except UnknownProblem as error:
        raise HTTPException(404, f"There is no problem '{slug[:60]}'. {error.fix}") from None


def find_submission(workbook: Workbook, slug: str, number: int) -> Submission:
    """Return a submission of this person to this problem; any other does not exist for them."""
    try:
        submission = workbook.store.get_submission(number)
    except (UnknownSubmission, OverflowError):
        submission = None
    if submission is None or submission.problem != slug:
        raise HTTPException(404, f"You have no submission {number} of this problem.")
    return submission


class _NobodysStore:
    """The store of somebody who has not signed in: everything can be read, nothing is stored."""

    folder = Path()
    catalogue = ""

    def list_submissions(self, problem: str | None = None) -> tuple[Submission, ...]:
        return ()

    def get_submission(self, number: int) -> Submission:
        raise UnknownSubmission(f"Unknown submission {number}.", where="", fix="sign in.")

    def load_source(self, number: int) -> bytes:
        self._reject()

    def load_judgement(self, number: int) -> Judgement | None:
        self._reject()

    def load_progress(self) -> Mapping[str, Progress]:
        return {}

    def progress_of(self, problem: str) -> Progress:
        return Progress(problem)

    def latest_problem(self) -> str | None:
        return None

    def load_draft(self, problem: str) -> Draft | None:
        return None

    def add_submission(
        self, problem: str, content_version: int, source: bytes, *, kind: str, seed: int
    ) -> int:
        self._reject()

    def save_judgement(self, number: int, judgement: Judgement) -> None:
        self._reject()

    def load_snapshot(
        self, problem: str | None = None, drafts: Sequence[str] = ()
    ) -> PracticeSnapshot:
        return PracticeSnapshot(progress={}, latest_problem=None)

    def record_start(self, problem: str, path: Path | None = None) -> None:
        self._reject()

    def record_hint(self, problem: str, number: int) -> None:
        self._reject()

    def record_solution_request(self, problem: str) -> int:
        self._reject()

    def save_draft(self, problem: str, source: str) -> Draft:
        self._reject()

    def replace_draft(self, seen: Draft | None, problem: str, source: str) -> Draft | None:
        self._reject()

    def delete_draft(self, problem: str) -> None:
        self._reject()

    def export_data(self) -> dict[str, Any]:
        self._reject()

    def write_zip(self, file: Path | IO[bytes]) -> None:
        self._reject()

    def _reject(self) -> NoReturn:
        raise HTTPException(401, "Sign in to attempt this problem.")

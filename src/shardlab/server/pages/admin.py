"""Administration: people and their roles, the queue, workers, slow problems, failures, disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.people_models import RowId
from shardlab.server.operations.queue_figures import (
    KindFigures,
    OwnFailure,
    ProblemTime,
    WorkerView,
    list_workers,
    own_failures,
    queue_by_kind,
    slowest_problems,
)
from shardlab.server.operations.storage import Storage, StorageFigures
from shardlab.server.page_rendering import render_page
from shardlab.server.pages.sign_in import TextField
from shardlab.server.people.accounts import AccountSummary
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.services import FailedJob, People, QueueState
from shardlab.server.person import Role

router = APIRouter(include_in_schema=False)

_MAX_SEARCH = 40


@dataclass(frozen=True, kw_only=True)
class NewPasswordNotice:
    """A password that was set for somebody; it is shown once."""

    name: str
    password: str


@dataclass(frozen=True, kw_only=True)
class AdminPage:
    """The context of admin.html."""

    people: tuple[AccountSummary, ...]
    search: str
    queue: QueueState
    kinds: tuple[KindFigures, ...]  # that have jobs
    workers: tuple[WorkerView, ...]
    slowest: tuple[ProblemTime, ...]
    own_failures: tuple[OwnFailure, ...]
    failures: tuple[FailedJob, ...]  # of programs
    storage: StorageFigures
    storage_message: str  # why nothing large is stored; empty: there is room
    roles: tuple[str, ...] = get_args(Role)
    new_password: NewPasswordNotice | None = None
    changed: AccountSummary | None = None  # whose role was set by the last request
    message: str = ""
    title: str = "Administration"


def _admin_page(request: Request, people: People, search: str = "") -> AdminPage:
    database = people.database
    storage: Storage = request.app.state.storage
    own = own_failures(database)
    own_ids = {failure.id for failure in own}
    return AdminPage(
        people=people.accounts.list_people(search=search),
        search=search,
        queue=people.queue_state(),
        kinds=tuple(row for row in queue_by_kind(database) if row.n_waiting or row.n_running),
        workers=list_workers(request.app.state.jobs),
        slowest=slowest_problems(database),
        own_failures=own,
        failures=tuple(job for job in people.recent_failures() if job.id not in own_ids),
        storage=storage.measure(),
        storage_message=storage.explain_refusal(),
    )


@router.get("/admin")
def show_admin(
    request: Request, people: PeopleServices, search: str = "", changed: int = 0
) -> Response:
    page = _admin_page(request, people, search[:_MAX_SEARCH])
    person = next((person for person in page.people if person.id == changed), None)
    return render_page(request, "admin.html", replace(page, changed=person))


def _list_location(search: str, changed: int = 0) -> str:
    """Return the address of the list as the admin has filtered it."""
    fields = {"search": search[:_MAX_SEARCH], "changed": changed}
    query = urlencode({name: value for name, value in fields.items() if value})
    anchor = f"#person-{changed}" if changed else ""
    return f"/admin?{query}{anchor}" if query else "/admin"


def _show_refusal(request: Request, people: People, search: str, error: Refusal) -> Response:
    page = replace(_admin_page(request, people, search[:_MAX_SEARCH]), message=error.message)
    return render_page(request, "admin.html", page, status=422)


@router.post("/admin/people/{person_id}/role")
def change_role(
    person_id: RowId,
    request: Request,
    people: PeopleServices,
    role: TextField = "",
    search: TextField = "",
) -> Response:
    try:
        people.accounts.set_role(person_id, role)
    except Refusal as error:
        return _show_refusal(request, people, search, error)
    return RedirectResponse(_list_location(search, person_id), 303)


@router.post("/admin/people/{person_id}/reset-password")
def reset_password(
    person_id: RowId, request: Request, people: PeopleServices, search: TextField = ""
) -> Response:
    name = people.accounts.get(person_id).name
    notice = NewPasswordNotice(name=name, password=people.accounts.reset_password(person_id))
    # No redirect: the password is in this response, and nowhere else.
    page = replace(_admin_page(request, people, search[:_MAX_SEARCH]), new_password=notice)
    return render_page(request, "admin.html", page)


@router.post("/admin/people/{person_id}/delete")
def delete_person(
    person_id: RowId,
    request: Request,
    admin: SignedIn,
    people: PeopleServices,
    confirmed_name: TextField = "",
    search: TextField = "",
) -> Response:
    person = people.accounts.get(person_id)
    try:
        if person.id == admin.id:
            raise Refusal("Delete your own account on the page of your account.")
        if confirmed_name.strip() != person.name:
            raise Refusal(f"Type the name {person.name} to delete this account.")
        people.delete_account(person)
    except Refusal as error:
        return _show_refusal(request, people, search, error)
    return RedirectResponse(_list_location(search), 303)

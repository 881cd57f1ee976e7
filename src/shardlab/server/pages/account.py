"""The account: password, passkeys, sessions, tokens for scripts, export, deletion."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.people_models import RowId
from shardlab.server.operations.person_usage import LimitUsage, person_usage
from shardlab.server.page_rendering import render_page
from shardlab.server.pages.sign_in import TextField, passkey_obstacle
from shardlab.server.people.passkeys import PasskeySummary
from shardlab.server.people.passwords import MIN_LENGTH
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.services import People
from shardlab.server.people.sessions import ApiTokenSummary, SessionSummary, describe_browser
from shardlab.server.person import Person
from shardlab.server.session_cookie import clear_session_cookie, start_session

router = APIRouter(include_in_schema=False)

_SPOOL_BYTES = 8 * 2**20  # an export above this is written to a temporary file
_DONE = {
    "password": "The password is changed. Other browsers are signed out.",
    "session": "The session has ended.",
    "revoked": "The token is revoked.",
    "passkey": "The passkey is added. Next time it signs you in, without name and password.",
    "passkey-removed": "The passkey is removed: it does not sign in any more. Browsers that are "
    "signed in stay so.",
}

_ALSO_WITH_PASSKEYS = {
    "password": " Passkeys still work: remove those that you do not know.",
}


@dataclass(frozen=True, kw_only=True)
class AccountPage:
    """The context of account.html."""

    sessions: tuple[SessionSummary, ...]
    current_session: int | None
    tokens: tuple[ApiTokenSummary, ...]
    passkeys: tuple[PasskeySummary, ...]
    passkey_obstacle: str  # why none can be added under this address; empty: they can
    browser: str  # in words; the name that a new passkey gets unless the person types another
    must_change_password: bool
    usage: tuple[LimitUsage, ...]
    min_length: int = MIN_LENGTH
    new_token: str = ""  # shown once
    done: str = ""
    message: str = ""
    field: str = ""  # that the message is about
    title: str = "Account"


@dataclass(frozen=True, kw_only=True)
class DeleteAccountPage:
    """The context of account_delete.html."""

    message: str = ""
    title: str = "Delete the account"


def _account_page(request: Request, people: People, person: Person) -> AccountPage:
    return AccountPage(
        sessions=people.sessions.list_sessions(person),
        current_session=request.state.identity.session_id,
        tokens=people.api_tokens.list_tokens(person),
        passkeys=people.passkeys.list_passkeys(person),
        passkey_obstacle=passkey_obstacle(request),
        browser=describe_browser(request.headers.get("user-agent", "")),
        must_change_password=request.state.identity.must_change_password,
        usage=person_usage(
            people.database, people.limits, request.app.state.settings.limits, person
        ),
    )


@router.get("/account")
def show_account(
    request: Request, person: SignedIn, people: PeopleServices, done: str = ""
) -> Response:
    page = _account_page(request, people, person)
    message = _DONE.get(done, "")
    if page.passkeys:
        message += _ALSO_WITH_PASSKEYS.get(done, "")
    page = replace(page, done=message)
    return render_page(request, "account.html", page)


def _show_refusal(request: Request, people: People, person: Person, error: Refusal) -> Response:
    page = _account_page(request, people, person)
    page = replace(page, message=error.message, field=error.field)
    return render_page(request, "account.html", page, status=422)


@router.post("/account/password")
def change_password(
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    current_password: TextField = "",
    password: TextField = "",
) -> Response:
    try:
        people.accounts.check_password(person, current_password)
        people.accounts.change_password(person, password, except_session=None)
    except Refusal as error:
        return _show_refusal(request, people, person, error)
    # The session of this browser is replaced too: it may have been taken before the change.
    response = RedirectResponse("/account?done=password", 303)
    start_session(request, response, people, person)
    return response


@router.post("/account/sessions/{session_id}/end")
def end_session(session_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    people.sessions.end_session(person, session_id)
    return RedirectResponse("/account?done=session", 303)


@router.post("/account/sessions/end-others")
def end_other_sessions(request: Request, person: SignedIn, people: PeopleServices) -> Response:
    for session in people.sessions.list_sessions(person):
        if session.id != request.state.identity.session_id:
            people.sessions.end_session(person, session.id)
    return RedirectResponse("/account?done=session", 303)


@router.post("/account/tokens")
def create_token(
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    label: TextField = "",
    can_submit: Annotated[bool, Form()] = False,
) -> Response:
    try:
        token = people.api_tokens.create(person, label, can_submit=can_submit)
    except Refusal as error:
        return _show_refusal(request, people, person, error)
    # No redirect: the token is in this response, and nowhere else.
    page = replace(_account_page(request, people, person), new_token=token)
    return render_page(request, "account.html", page, status=201)


@router.post("/account/tokens/{token_id}/revoke")
def revoke_token(token_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    people.api_tokens.revoke(person, token_id)
    return RedirectResponse("/account?done=revoked", 303)


@router.post("/account/passkeys/{passkey_id}/remove")
def remove_passkey(passkey_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    people.passkeys.remove(person, passkey_id)
    return RedirectResponse("/account?done=passkey-removed", 303)


@router.get("/account/export.zip")
def export_account(person: SignedIn, people: PeopleServices) -> Response:
    file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115  closed after the last chunk
    people.data.write_zip(person, file)
    file.seek(0)
    headers = {"content-disposition": 'attachment; filename="shardlab-account.zip"'}
    return StreamingResponse(_chunks(file), media_type="application/zip", headers=headers)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(1 << 16):
            yield chunk


@router.get("/account/delete")
def confirm_deletion(request: Request) -> Response:
    return render_page(request, "account_delete.html", DeleteAccountPage())


@router.post("/account/delete")
def delete_account(
    request: Request, person: SignedIn, people: PeopleServices, current_password: TextField = ""
) -> Response:
    try:
        people.accounts.check_password(person, current_password)
        people.delete_account(person)
    except Refusal as error:
        page = DeleteAccountPage(message=error.message)
        return render_page(request, "account_delete.html", page, status=422)
    response = RedirectResponse("/", 303)
    clear_session_cookie(request, response)
    return response

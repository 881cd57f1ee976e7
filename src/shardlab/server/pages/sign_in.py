"""Sign up, sign in, sign out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from shardlab.server.api.account import PeopleServices
from shardlab.server.page_rendering import render_page
from shardlab.server.people.passwords import MIN_LENGTH
from shardlab.server.people.rate_limits import TooManyRequests
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.relying_party import relying_party
from shardlab.server.people.services import People
from shardlab.server.person import Person
from shardlab.server.session_cookie import (
    clear_session_cookie,
    client_address,
    local_path,
    start_session,
)

router = APIRouter(include_in_schema=False)

TextField = Annotated[str, Form(max_length=2000)]


@dataclass(frozen=True, kw_only=True)
class SignInPage:
    """The context of sign_in.html."""

    next_path: str
    passkey_obstacle: str  # why there are none under this address; empty: there are
    name: str = ""
    message: str = ""
    title: str = "Sign in"


def passkey_obstacle(request: Request) -> str:
    """Return why no passkey can be used under the address of a request; empty: one can."""
    try:
        relying_party(request.app.state.settings, request.headers.get("host", ""))
    except Refusal as refusal:
        return refusal.message
    return ""


@dataclass(frozen=True, kw_only=True)
class SignUpPage:
    """The context of sign_up.html."""

    next_path: str
    name: str = ""
    message: str = ""
    field: str = ""  # that the message is about
    min_length: int = MIN_LENGTH
    title: str = "Sign up"


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "") -> Response:
    next_path = local_path(next)
    if request.state.person is not None:
        return RedirectResponse(next_path, 303)
    page = SignInPage(next_path=next_path, passkey_obstacle=passkey_obstacle(request))
    return render_page(request, "sign_in.html", page)


@router.post("/sign-in")
def sign_in(
    request: Request,
    people: PeopleServices,
    name: TextField = "",
    password: TextField = "",
    next: TextField = "",
) -> Response:
    next_path = local_path(next)
    try:
        person = people.accounts.sign_in(name, password, address=client_address(request))
    except (Refusal, TooManyRequests) as error:
        request.app.state.metrics.sign_in_failures.add("password")
        page = SignInPage(
            next_path=next_path,
            passkey_obstacle=passkey_obstacle(request),
            name=name[:80],
            message=error.message,
        )
        return _refused(render_page(request, "sign_in.html", page), error)
    return _signed_in(request, people, person, next_path)


@router.get("/sign-up")
def show_sign_up(request: Request, next: str = "") -> Response:
    next_path = local_path(next)
    if request.state.person is not None:
        return RedirectResponse(next_path, 303)
    return render_page(request, "sign_up.html", SignUpPage(next_path=next_path))


@router.post("/sign-up")
def sign_up(
    request: Request,
    people: PeopleServices,
    name: TextField = "",
    password: TextField = "",
    next: TextField = "",
) -> Response:
    next_path = local_path(next)
    try:
        person = people.accounts.sign_up(name, password, address=client_address(request))
    except (Refusal, TooManyRequests) as error:
        field = error.field if isinstance(error, Refusal) else ""
        page = SignUpPage(next_path=next_path, name=name[:80], message=error.message, field=field)
        return _refused(render_page(request, "sign_up.html", page), error)
    return _signed_in(request, people, person, next_path)


@router.post("/sign-out")
def sign_out(request: Request, people: PeopleServices) -> Response:
    people.sessions.end(request.state.identity.session_token)
    response = RedirectResponse("/", 303)
    clear_session_cookie(request, response)
    return response


def _signed_in(request: Request, people: People, person: Person, next_path: str) -> Response:
    response = RedirectResponse(next_path, 303)
    start_session(request, response, people, person)
    return response


def _refused(response: Response, error: Refusal | TooManyRequests) -> Response:
    response.status_code = 422
    if isinstance(error, TooManyRequests):
        response.status_code = 429
        response.headers["retry-after"] = str(error.retry_after)
    return response

"""Sign up, sign in, sign out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from shardlab.server.api.account import PeopleServices
from shardlab.server.identity import read_cookie, session_cookie_name
from shardlab.server.page_rendering import render_page
from shardlab.server.people.passwords import MIN_LENGTH
from shardlab.server.people.rate_limits import TooManyRequests
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.services import People
from shardlab.server.people.sessions import ABSOLUTE_SECONDS
from shardlab.server.person import Person

router = APIRouter(include_in_schema=False)

AFTER_SIGN_IN = "/practice"
TextField = Annotated[str, Form(max_length=2000)]


@dataclass(frozen=True, kw_only=True)
class SignInPage:
    """The context of sign_in.html."""

    next_path: str
    name: str = ""
    message: str = ""
    title: str = "Sign in"


@dataclass(frozen=True, kw_only=True)
class SignUpPage:
    """The context of sign_up.html."""

    next_path: str
    name: str = ""
    message: str = ""
    field: str = ""  # that the message is about
    min_length: int = MIN_LENGTH
    title: str = "Sign up"


def local_path(text: str) -> str:
    """Return where to go after the sign-in: a path of this server and nothing else.

    >>> local_path("/classes/3"), local_path("//evil.example/"), local_path("https://evil.example")
    ('/classes/3', '/practice', '/practice')
    """
    # Browsers read \\ as /, and drop tabs and newlines, so //host can be written in many ways.
    is_local = text.startswith("/") and not text.startswith(("//", "/\\"))
    is_plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= 500
    return text if is_local and is_plain else AFTER_SIGN_IN


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "") -> Response:
    next_path = local_path(next)
    if request.state.person is not None:
        return RedirectResponse(next_path, 303)
    return render_page(request, "sign_in.html", SignInPage(next_path=next_path))


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
        page = SignInPage(next_path=next_path, name=name[:80], message=error.message)
        return _refused(render_page(request, "sign_in.html", page), error)
    return start_session(request, people, person, next_path)


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
    return start_session(request, people, person, next_path)


@router.post("/sign-out")
def sign_out(request: Request, people: PeopleServices) -> Response:
    people.sessions.end(request.state.identity.session_token)
    response = RedirectResponse("/", 303)
    clear_session_cookie(request, response)
    return response


def start_session(request: Request, people: People, person: Person, next_path: str) -> Response:
    """Return the response that signs a browser in, with a new session."""
    settings = request.app.state.settings
    name = session_cookie_name(settings)
    token = people.sessions.start(
        person,
        user_agent=request.headers.get("user-agent", ""),
        replaces=read_cookie(request.headers, name),
    )
    response = RedirectResponse(next_path, 303)
    response.set_cookie(
        name,
        token,
        max_age=ABSOLUTE_SECONDS,
        path="/",
        secure=settings.is_https,
        httponly=True,
        samesite="lax",
    )
    return response


def clear_session_cookie(request: Request, response: Response) -> None:
    """Remove the session's cookie from the browser."""
    settings = request.app.state.settings
    response.delete_cookie(
        session_cookie_name(settings),
        path="/",
        secure=settings.is_https,
        httponly=True,
        samesite="lax",
    )


def client_address(request: Request) -> str:
    """Return the address of the client; uvicorn has read it from a trusted proxy's header."""
    return request.client.host if request.client else "unknown"


def _refused(response: Response, error: Refusal | TooManyRequests) -> Response:
    response.status_code = 422
    if isinstance(error, TooManyRequests):
        response.status_code = 429
        response.headers["retry-after"] = str(error.retry_after)
    return response

"""The cookie of a session: set at every sign-in, cleared at the end."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from shardlab.server.identity import read_cookie, session_cookie_name
from shardlab.server.people.services import People
from shardlab.server.people.sessions import ABSOLUTE_SECONDS
from shardlab.server.person import Person

AFTER_SIGN_IN = "/practice"


def local_path(text: str) -> str:
    """Return where to go after the sign-in: a path of this server and nothing else.

    >>> local_path("/classes/3"), local_path("//evil.example/"), local_path("https://evil.example")
    ('/classes/3', '/practice', '/practice')
    """
    # Browsers read \\ as /, and drop tabs and newlines, so //host can be written in many ways.
    is_local = text.startswith("/") and not text.startswith(("//", "/\\"))
    is_plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= 500
    return text if is_local and is_plain else AFTER_SIGN_IN


def start_session(request: Request, response: Response, people: People, person: Person) -> None:
    """Sign the browser in with a new session; the one that it had ends."""
    settings = request.app.state.settings
    name = session_cookie_name(settings)
    token = people.sessions.start(
        person,
        user_agent=request.headers.get("user-agent", ""),
        replaces=read_cookie(request.headers, name),
    )
    response.set_cookie(
        name,
        token,
        max_age=ABSOLUTE_SECONDS,
        path="/",
        secure=settings.is_https,
        httponly=True,
        samesite="lax",
    )


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

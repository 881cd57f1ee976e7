"""Who sends a request: a signed-in browser, a script with a token, or nobody known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from shardlab.server.person import Person
from shardlab.server.settings import ServerSettings

if TYPE_CHECKING:  # local mode never loads the services of accounts, and argon2 with them
    from shardlab.server.people.services import People

_MAX_COOKIE = 100


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The person behind a request, and how they proved it."""

    person: Person | None = None
    session_id: int | None = None
    session_token: str = ""  # of a browser that is signed in; its CSRF token depends on it
    is_script: bool = False  # an API token: it has no cookie, so no other site can use it
    can_submit: bool = True
    must_change_password: bool = False


Identify = Callable[[Headers], Identity]


def session_cookie_name(settings: ServerSettings) -> str:
    """Return the name of the session's cookie.

    With HTTPS it has the prefix that makes browsers refuse it unless it is Secure, for all paths,
    and set by this very host, so that a neighbouring subdomain cannot plant one.
    """
    return "__Host-shardlab_session" if settings.is_https else "shardlab_session"


def identify_with(people: People, settings: ServerSettings) -> Identify:
    """Return the lookup of server mode."""
    cookie_name = session_cookie_name(settings)

    def identify(headers: Headers) -> Identity:
        if "authorization" in headers:
            # Never both: a request with a token must not also carry the rights of a cookie.
            return _identify_script(people, headers["authorization"])
        token = read_cookie(headers, cookie_name)
        session = people.sessions.find(token)
        if session is None:
            return Identity()
        return Identity(
            person=session.person,
            session_id=session.id,
            session_token=token,
            must_change_password=session.must_change_password,
        )

    return identify


def _identify_script(people: People, authorization: str) -> Identity:
    scheme, _, token = authorization.partition(" ")
    found = people.api_tokens.find(token.strip()) if scheme.lower() == "bearer" else None
    if found is None:
        return Identity(is_script=True)
    person, can_submit = found
    return Identity(person=person, is_script=True, can_submit=can_submit)


def read_cookie(headers: Headers, name: str) -> str:
    """Return a cookie; empty if there is none, or one that is not ours."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if cookie is None or len(cookie.value) > _MAX_COOKIE else cookie.value

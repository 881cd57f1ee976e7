"""Checks every request before a page sees it, and adds the security headers to every response.

- Host: only names in the settings are served (DNS rebinding).
- Origin: a request that changes something must come from a page of this server.
- Person: who sends it, from the session's cookie or a script's API token (`Identity`).
- CSRF token: such a request also carries the token of its session, as a header or a form field. The
  field is compared here, so that no route can forget it. A script has no cookie, and needs none.
- Size: a head or a body above its limit is refused, with or without a Content-Length.
- Time: a body that arrives slower than any usual connection is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardlab.server.identity import Identify, Identity, read_cookie
from shardlab.server.operations.monitor_access import MONITORING_PATHS
from shardlab.server.pages.error_response import error_response
from shardlab.server.settings import ServerSettings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES = 4 * 2**20  # the largest legal body is the header of a safetensors file
# A saved recording is the one larger file; the route checks its content and its expanded size.
LARGE_BODY_PATHS = {"/api/v1/recordings/files": 16 * 2**20}
MAX_HEAD_BYTES = 64 * 1024  # all headers together
MAX_QUERY_BYTES = 32 * 1024  # the rules of a plan are the longest, up to three bytes a character
MAX_PATH_CHARACTERS = 2000
# A body has this time, and more for each byte that has arrived: 4 MiB at 128 kbit/s are legal.
BODY_SECONDS = 30.0
MIN_BODY_BYTES_PER_SECOND = 16 * 1024
BROWSER_COOKIE = "shardlab_browser"  # identifies a browser, signed in or not
CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"
_LOG = logging.getLogger("shardlab.server")

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    # Pages show a person's own work. Static files and recordings set their own.
    "cache-control": "no-store",
}


def content_security_policy(nonce: str) -> str:
    """Return the policy of one response: no inline script, no eval, no other host.

    Styles are files too; scripts may set them on elements. No script of shardlab needs the nonce:
    htmx finds it here, and reads only attributes of elements that have it (hx-csp).
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


def csrf_token(secret: bytes, browser: str, session_token: str = "") -> str:
    """Return the token that forms of this browser carry.

    It depends on the session too: one from before the sign-in, or of another session in the same
    browser, is worth nothing.
    """
    message = f"csrf {browser} {session_token}".encode()
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


_NO_DATABASE = "The database does not answer. Try again in a moment."


def _log_failure(error: Exception, scope: Scope) -> None:
    # The route and not the path, which can have a secret: the link to a class.
    request = f"{scope['method']} {scope['state'].get('route', 'no route')}"
    # Imported here: the first pages are served before SQLAlchemy is loaded.
    from shardlab.server.database.database_errors import first_line, is_passing_error

    if is_passing_error(error):
        _LOG.error("%s: %s", request, first_line(error))
    else:
        _LOG.error("error in %s", request, exc_info=error)


def _failure_response(request: Request, error: Exception) -> Response:
    from shardlab.server.database.database_errors import is_passing_error

    if is_passing_error(error):
        return error_response(request, 503, _NO_DATABASE, headers={"retry-after": "5"})
    return error_response(request, 500, "Something failed in shardlab itself. It is in the log.")


class RequestGuard:
    """ASGI middleware.

    Sets `browser`, `identity`, `person`, `csrf_token` and `csp_nonce` of `request.state`.
    """

    def __init__(
        self, app: ASGIApp, *, settings: ServerSettings, secret: bytes, identify: Identify
    ) -> None:
        self._app = app
        self._settings = settings
        self._secret = secret
        self._identify = identify
        # Browsers refuse this prefix unless the cookie is Secure and of this very host.
        self._cookie_name = f"__Host-{BROWSER_COOKIE}" if settings.is_https else BROWSER_COOKIE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_request(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        # There are no web sockets: without a response the server refuses the connection.

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        browser = read_cookie(headers, self._cookie_name)
        new_browser = "" if browser else secrets.token_urlsafe(24)
        state = scope.setdefault("state", {})
        state["browser"] = browser or new_browser
        state["csp_nonce"] = secrets.token_urlsafe(16)
        self._set_identity(state, Identity())  # for the page of an error before the lookup
        has_started = False
        # A route for GET answers HEAD too: the same headers, without the body.
        is_head = scope["method"] == "HEAD"
        if is_head:
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._add_headers(MutableHeaders(scope=message), state["csp_nonce"], new_browser)
                await send(message)
                if is_head:  # this ends the response: a stream of events sees that and ends too
                    await send({"type": "http.response.body", "body": b""})
            elif not is_head:
                await send(message)

        try:
            checked_receive = await self._check(scope, headers, receive)
            await self._app(scope, checked_receive, send_with_headers)
        except HTTPException as error:  # raised outside of the application
            response = error_response(
                Request(scope), error.status_code, error.detail, headers=error.headers
            )
            await response(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            # Starlette's own handler for these is outside of this middleware: its response would
            # have no security headers.
            _log_failure(error, scope)
            if has_started:
                raise
            response = _failure_response(Request(scope), error)
            await response(scope, receive, send_with_headers)

    def _add_headers(self, response: MutableHeaders, nonce: str, new_browser: str) -> None:
        response.setdefault("content-security-policy", content_security_policy(nonce))
        for name, value in SECURITY_HEADERS.items():
            response.setdefault(name, value)
        if self._settings.is_https:
            response.setdefault("strict-transport-security", "max-age=31536000")
        if new_browser:
            response.append("set-cookie", self._browser_cookie(new_browser))

    # -------------------------------------------------------------------------------- checks

    async def _check(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Return what the application reads the body from. Raises `HTTPException`."""
        is_probe = scope["path"] in MONITORING_PATHS and scope["method"] in SAFE_METHODS
        if not is_probe and headers.get("host", "") not in self._settings.allowed_hosts:
            raise HTTPException(421, "This server does not serve this host name.")
        _check_head_size(scope)
        limit = LARGE_BODY_PATHS.get(scope["path"], MAX_BODY_BYTES)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > limit:
            raise HTTPException(413, "The request is too large.")
        limited = _limited_receive(receive, limit)
        is_script = False
        # A probe must not need the database to find out that there is none.
        if not is_probe and not scope["path"].startswith("/static/"):
            identity = await self._find_identity(headers)
            self._set_identity(scope["state"], identity)
            is_script = identity.is_script
            # A browser sends other Authorization headers on its own (Basic), so only a valid token
            # replaces the CSRF token.
            if is_script and identity.person is None and scope["method"] not in SAFE_METHODS:
                raise HTTPException(401, "The API token is not valid.")
        if scope["method"] in SAFE_METHODS or is_script:
            return limited
        if not self._is_same_origin(headers):
            raise HTTPException(403, _other_site_text(self._settings))
        expected = scope["state"]["csrf_token"]
        token = headers.get(CSRF_HEADER)
        if token is None and _is_form(headers) and not scope["path"].startswith("/api/"):
            token, limited = await _read_form_token(scope, limited)
        if token is None:
            raise HTTPException(403, "The CSRF token is missing.")
        # As bytes: compare_digest refuses text with other characters than ASCII.
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected.encode()):
            raise HTTPException(403, "The page is out of date. Reload it, then try again.")
        return limited

    async def _find_identity(self, headers: Headers) -> Identity:
        if self._settings.is_local:  # always the same person: no thread is needed to know that
            return self._identify(headers)
        # In a thread: the database must not hold up the other requests of this process.
        return await run_in_threadpool(self._identify, headers)

    def _set_identity(self, state: dict[str, Any], identity: Identity) -> None:
        state["identity"] = identity
        state["person"] = identity.person
        state["csrf_token"] = csrf_token(self._secret, state["browser"], identity.session_token)

    def _is_same_origin(self, headers: Headers) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        if origin is None:
            return True
        scheme = "https" if self._settings.is_https else "http"
        return origin == f"{scheme}://{headers.get('host')}"

    def _browser_cookie(self, browser: str) -> str:
        secure = "; Secure" if self._settings.is_https else ""
        return f"{self._cookie_name}={browser}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _check_head_size(scope: Scope) -> None:
    if len(scope["query_string"]) > MAX_QUERY_BYTES or len(scope["path"]) > MAX_PATH_CHARACTERS:
        raise HTTPException(414, "The address is too long.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD_BYTES:
        raise HTTPException(431, "The headers are too large.")


def _is_form(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith(
        ("application/x-www-form-urlencoded", "multipart/form-data")
    )


async def _read_form_token(scope: Scope, receive: Receive) -> tuple[str | None, Receive]:
    """Return the token in a form, and a `receive` that yields the same body once more."""
    body = b""
    is_complete = False
    while not is_complete:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        is_complete = not message.get("more_body", False)

    def replay() -> Receive:
        is_sent = False

        async def receive_again() -> Message:
            nonlocal is_sent
            if is_sent:
                return await receive()
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive_again

    try:
        async with Request(scope, replay()).form() as form:
            token = form.get(CSRF_FIELD)
    except HTTPException as error:
        raise HTTPException(400, "The form cannot be read.") from error
    return (token if isinstance(token, str) else None), replay()


def _limited_receive(receive: Receive, limit: int) -> Receive:
    """Count the bytes of a body, whatever its Content-Length says; refuse it at the limit."""
    n_bytes = 0
    is_complete = False
    start = asyncio.get_running_loop().time()

    async def limited() -> Message:
        nonlocal n_bytes, is_complete
        if is_complete:  # what follows is the end of the connection: nothing to hurry for
            return await receive()
        end = start + BODY_SECONDS + n_bytes / MIN_BODY_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError:
            raise HTTPException(
                408, "The request arrives too slowly.", headers={"connection": "close"}
            ) from None
        is_complete = not message.get("more_body", False)
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            # FastAPI and Starlette pass this one on while they read a body.
            raise HTTPException(413, "The request is too large.")
        return message

    return limited


def _other_site_text(settings: ServerSettings) -> str:
    """Return why a form is refused; with public hosts, under which address it would be accepted."""
    if not settings.public_hosts:
        return "The request comes from another site."
    return f"The request comes from another site. This server's address is {settings.public_url}"

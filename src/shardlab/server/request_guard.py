"""Checks every request before a page sees it, and adds the security headers to every response.

- Host: only names in the settings are served (DNS rebinding).
- Origin: a request that changes something must come from a page of this server.
- CSRF token: such a request also carries the token of its session, as a header or a form field.
- Size: a body above the limit is refused before it is read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardlab.server.settings import ServerSettings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES = 4 * 2**20  # the largest legal body is the header of a safetensors file
BROWSER_COOKIE = "shardlab_browser"  # identifies a browser, signed in or not
CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"

# No inline script, no eval, no other host. Styles are files too; scripts may set them on elements.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def csrf_token(secret: bytes, browser: str) -> str:
    """Return the token that forms of this browser carry."""
    return hmac.new(secret, f"csrf {browser}".encode(), hashlib.sha256).hexdigest()


class RequestGuard:
    """ASGI middleware. Sets `request.state.browser` and `request.state.csrf_token`."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, secret: bytes) -> None:
        self._app = app
        self._settings = settings
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        browser = _read_cookie(headers, BROWSER_COOKIE)
        is_new = not browser
        browser = browser or secrets.token_urlsafe(24)
        state = scope.setdefault("state", {})
        state["browser"] = browser
        state["csrf_token"] = csrf_token(self._secret, browser)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    response.setdefault(name, value)
                if is_new:
                    response.append("set-cookie", self._browser_cookie(browser))
            await send(message)

        refusal = self._refuse(scope, headers, state["csrf_token"])
        app = self._app if refusal is None else refusal
        limited = _limited_receive(receive) if refusal is None else receive
        await app(scope, limited, send_with_headers)

    def _refuse(self, scope: Scope, headers: Headers, token: str) -> PlainTextResponse | None:
        """Return the response of a request that is not served; None if it is."""
        if headers.get("host", "") not in self._settings.allowed_hosts:
            return PlainTextResponse("This server does not serve this host name.", 421)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return PlainTextResponse("The request is too large.", 413)
        if scope["method"] in SAFE_METHODS or "authorization" in headers:
            # A token in the Authorization header is never sent by a browser on its own.
            return None
        if not self._is_same_origin(headers):
            return PlainTextResponse("The request comes from another site.", 403)
        sent = headers.get(CSRF_HEADER)
        # A form without scripts sends the token as a field, which `check_form_token` compares.
        if sent is not None and not hmac.compare_digest(sent, token):
            return PlainTextResponse("The page is out of date. Reload it, then try again.", 403)
        is_form = headers.get("content-type", "").startswith(
            ("application/x-www-form-urlencoded", "multipart/form-data")
        )
        if sent is None and not is_form:
            return PlainTextResponse("The CSRF token is missing.", 403)
        return None

    def _is_same_origin(self, headers: Headers) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == headers.get("host")

    def _browser_cookie(self, browser: str) -> str:
        secure = "; Secure" if self._settings.is_https else ""
        return f"{BROWSER_COOKIE}={browser}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _read_cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if cookie is None or len(cookie.value) > 100 else cookie.value


def _limited_receive(receive: Receive) -> Receive:
    """Count the bytes of a body without a Content-Length; end the request at the limit."""
    n_bytes = 0

    async def limited() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message

    return limited

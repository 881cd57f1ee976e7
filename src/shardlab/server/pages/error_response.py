"""The response of an error: a page, a part of one, or JSON under /api."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shardlab.server.page_rendering import render_page

_MEANINGS = {
    400: "The request cannot be read.",
    401: "Sign in first.",
    403: "You cannot do this.",
    404: "There is no such page.",
    405: "This page does not accept that kind of request.",
    413: "The request is too large.",
    422: "The request has a value that is not valid.",
    429: "Too many requests. Wait a minute, then try again.",
    503: "The server is busy. Try again in a minute.",
}
_FIXES = {
    401: "Sign in, then open the page again.",
    403: "Your account has no access to it. If the page was open for a long time, load it again.",
    404: "Check the address, or start at the home page.",
    413: "Send less: a page accepts 4 MiB, and a submission has its own limit.",
    429: "Nothing was changed. The same request works after the wait.",
    500: "Try once more. If it fails again, tell whoever runs this server.",
    503: "Nothing was changed. Wait a minute, then try again.",
    507: "Nothing was changed. Tell whoever runs this server.",
}


@dataclass(frozen=True, kw_only=True)
class ErrorPage:
    """The context of error.html."""

    status: int
    meaning: str
    fix: str
    has_editor: bool = False  # beside the error, with the text that was not accepted

    @property
    def title(self) -> str:
        return f"Error {self.status}"


def error_response(
    request: Request,
    status: int,
    meaning: str = "",
    *,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response of an error: a page, or JSON under /api."""
    meaning = meaning or _MEANINGS.get(status, "The request failed.")
    if request.url.path.startswith("/api/"):
        content = {"error": {"status": status, "message": meaning, **(details or {})}}
        return JSONResponse(content, status, dict(headers or {}))
    fix = (details or {}).get("fix") or ""
    if is_part_request(request):
        return _error_fragment(request, status, meaning, fix, headers)
    fix = fix or _FIXES.get(status, "Go back, or start at the home page.")
    page = ErrorPage(status=status, meaning=meaning, fix=fix)
    response = render_page(request, "error.html", page, status=status)
    response.headers.update(headers or {})
    return response


def is_part_request(request: Request) -> bool:
    """Return whether htmx asks for a part of the page that is open."""
    return "hx-request" in request.headers


def _error_fragment(
    request: Request, status: int, meaning: str, fix: str, headers: Mapping[str, str] | None
) -> Response:
    """Return the sentence alone, for the place that each part of a page has for errors.

    What the part shows stays: a refused submission must not end the judgement that is under way.
    """
    # htmx names the target of the request with its tag, such as `section#result`.
    is_result = request.headers.get("hx-target", "").endswith("#result")
    page = ErrorPage(status=status, meaning=meaning, fix=fix, has_editor=is_result)
    response = render_page(request, "_request_error.html", page, status=status)
    response.headers["hx-retarget"] = "#result-error" if is_result else "#panel-error"
    response.headers["hx-reswap"] = "innerHTML"
    response.headers.update(headers or {})
    return response

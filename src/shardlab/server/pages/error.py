"""The page of an error: what happened and what to do, never internals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardlab.errors import LabError
from shardlab.server.access import OwnPasswordRequired, SignInRequired
from shardlab.server.field_messages import field_message
from shardlab.server.operations.storage import StorageFull
from shardlab.server.page_rendering import render_page
from shardlab.server.people.rate_limits import TooManyRequests
from shardlab.server.people.refusals import NotThere, Refusal

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
_MAX_FIELDS = 20


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


def add_error_pages(app: FastAPI) -> None:
    """Answer every error with a page, or with JSON under /api."""
    handlers = {
        HTTPException: _show_http_error,
        RequestValidationError: _show_invalid_request,
        LabError: _show_lab_error,
        SignInRequired: _show_sign_in,
        OwnPasswordRequired: _show_own_password,
        TooManyRequests: _show_rate_limit,
        Refusal: _show_refusal,
        StorageFull: _show_storage_full,
        NotThere: _show_not_there,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]  # own kinds


async def _show_http_error(request: Request, error: HTTPException) -> Response:
    # Starlette's own detail is the name of the status, such as "Not Found".
    is_own = error.detail != HTTPStatus(error.status_code).phrase
    meaning = error.detail if is_own and error.detail else ""
    return error_response(request, error.status_code, meaning, headers=error.headers)


async def _show_invalid_request(request: Request, error: RequestValidationError) -> Response:
    fields = [
        {"field": _field_name(item["loc"]), "message": str(item["msg"])[:200]}
        for item in error.errors()[:_MAX_FIELDS]
    ]
    message = field_message(fields[0]["field"], error.errors()[0])
    return error_response(request, 422, message, details={"fields": fields})


def _field_name(location: tuple[Any, ...]) -> str:
    # The first part says where it was: body, query, path.
    return ".".join(map(str, location[1:]))[:100]


async def _show_lab_error(request: Request, error: LabError) -> Response:
    details = {"code": error.code, "where": error.where or "", "fix": error.fix or ""}
    return error_response(request, 422, error.what, details=details)


async def _show_sign_in(request: Request, error: SignInRequired) -> Response:
    if _is_part_request(request):
        # htmx would follow the redirect and put the page of the sign-in into a part of this one.
        meaning = "You are signed out."
        fix = "sign in again in another tab, reload this page, then try again."
        return error_response(request, 401, meaning, details={"fix": fix})
    if error.location:
        return RedirectResponse(error.location, 303)
    return error_response(request, 401, headers={"www-authenticate": "Bearer"})


async def _show_own_password(request: Request, error: OwnPasswordRequired) -> Response:
    if request.url.path.startswith("/api/"):
        return error_response(request, 401, headers={"www-authenticate": "Bearer"})
    if not _is_part_request(request):
        return RedirectResponse("/account", 303)
    meaning = "An admin has set your password. Choose one of your own first."
    return error_response(request, 403, meaning, details={"fix": "open the page Account."})


async def _show_rate_limit(request: Request, error: TooManyRequests) -> Response:
    headers = {"retry-after": str(error.retry_after)}
    return error_response(request, 429, error.message, headers=headers)


async def _show_storage_full(request: Request, error: StorageFull) -> Response:
    return error_response(request, 507, error.message)


async def _show_refusal(request: Request, error: Refusal) -> Response:
    return error_response(request, 422, error.message)


async def _show_not_there(request: Request, error: NotThere) -> Response:
    return error_response(request, 404)


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
    if _is_part_request(request):
        return _error_fragment(request, status, meaning, fix, headers)
    fix = fix or _FIXES.get(status, "Go back, or start at the home page.")
    page = ErrorPage(status=status, meaning=meaning, fix=fix)
    response = render_page(request, "error.html", page, status=status)
    response.headers.update(headers or {})
    return response


def _is_part_request(request: Request) -> bool:
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

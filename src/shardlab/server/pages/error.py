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
from shardlab.server.access import SignInRequired
from shardlab.server.field_messages import field_message
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
_MAX_FIELDS = 20


@dataclass(frozen=True, kw_only=True)
class ErrorPage:
    """The context of error.html."""

    status: int
    meaning: str
    fix: str
    title: str = "Error"


def add_error_pages(app: FastAPI) -> None:
    """Answer every error with a page, or with JSON under /api."""
    handlers = {
        HTTPException: _show_http_error,
        RequestValidationError: _show_invalid_request,
        LabError: _show_lab_error,
        SignInRequired: _show_sign_in,
        TooManyRequests: _show_rate_limit,
        Refusal: _show_refusal,
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
    if error.location:
        return RedirectResponse(error.location, 303)
    return error_response(request, 401, headers={"www-authenticate": "Bearer"})


async def _show_rate_limit(request: Request, error: TooManyRequests) -> Response:
    headers = {"retry-after": str(error.retry_after)}
    return error_response(request, 429, error.message, headers=headers)


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
    fix = (details or {}).get("fix") or "Go back, or start at the home page."
    page = ErrorPage(status=status, meaning=meaning, fix=fix)
    response = render_page(request, "error.html", page, status=status)
    response.headers.update(headers or {})
    return response

"""Which response each kind of error has: what happened and what to do, never internals."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardlab.errors import LabError
from shardlab.server.access import OwnPasswordRequired, SignInRequired
from shardlab.server.field_messages import field_message
from shardlab.server.operations.storage import StorageFull
from shardlab.server.pages.error_response import error_response, is_part_request
from shardlab.server.people.rate_limits import TooManyRequests
from shardlab.server.people.refusals import NotThere, Refusal

_MAX_FIELDS = 20


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
    if is_part_request(request):
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
    if not is_part_request(request):
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

"""The page of an error: what happened and what to do, never internals."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardlab.server.page_rendering import render_page

_logger = logging.getLogger("shardlab.server")

_MEANINGS = {
    400: "The request cannot be read.",
    403: "You cannot do this.",
    404: "There is no such page.",
    405: "This page does not accept that kind of request.",
    413: "The request is too large.",
    429: "Too many requests. Wait a minute, then try again.",
    503: "The server is busy. Try again in a minute.",
}


@dataclass(frozen=True, kw_only=True)
class ErrorPage:
    """The context of error.html."""

    status: int
    meaning: str
    fix: str
    title: str = "Error"


def add_error_pages(app: FastAPI) -> None:
    """Answer every error with a page, or with JSON under /api."""
    app.add_exception_handler(HTTPException, _show_http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _show_internal_error)


async def _show_http_error(request: Request, error: HTTPException) -> Response:
    # Starlette's own detail is the name of the status, such as "Not Found".
    is_own = error.detail != HTTPStatus(error.status_code).phrase
    known = _MEANINGS.get(error.status_code, "The request failed.")
    meaning = error.detail if is_own and error.detail else known
    return _respond(request, error.status_code, meaning, dict(error.headers or {}))


async def _show_internal_error(request: Request, error: Exception) -> Response:
    _logger.error("error in %s %s", request.method, request.url.path, exc_info=error)
    return _respond(request, 500, "Something failed in shardlab itself. It is in the log.", {})


def _respond(request: Request, status: int, meaning: str, headers: dict[str, str]) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": {"status": status, "message": meaning}}, status, headers)
    page = ErrorPage(status=status, meaning=meaning, fix="Go back, or start at the home page.")
    response = render_page(request, "error.html", page, status=status)
    response.headers.update(headers)
    return response

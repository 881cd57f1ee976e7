"""The outermost middleware: gives every request an id, counts it, and writes its log line."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardlab.server.operations.metrics import ServerMetrics
from shardlab.server.operations.request_id import (
    REQUEST_ID_HEADER,
    choose_request_id,
    current_request_id,
)

_LOG = logging.getLogger("shardlab.server.requests")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# A probe every few seconds says nothing; one that fails has a line.
_SILENT_ROUTES = frozenset({"/health", "/healthz", "/readyz", "/metrics", "/static"})
NO_ROUTE = "none"  # refused before a route was chosen, or there is none


class RequestLog:
    """ASGI middleware. Sets `request_id` of `request.state`; a route sets `route` there."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        request_id = choose_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER))
        state["request_id"] = request_id
        token = current_request_id.set(request_id)
        start = time.perf_counter()
        first_byte: float | None = None
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal first_byte, status
            if message["type"] == "http.response.start":
                first_byte, status = time.perf_counter() - start, message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            # An event stream lasts as long as its job, so what is measured is the first byte.
            elapsed = time.perf_counter() - start
            self._record(scope, status, elapsed if first_byte is None else first_byte, elapsed)
            current_request_id.reset(token)

    def _record(self, scope: Scope, status: int, first_byte: float, elapsed: float) -> None:
        state = scope["state"]
        route = state.get("route") or _mounted_route(scope)
        # The method is the client's text: only known ones are labels.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        # Status 0: the client has gone before there was a response.
        self._metrics.requests.add(method, route, str(status))
        self._metrics.request_seconds.observe(first_byte, route)
        is_silent = route in _SILENT_ROUTES and status < 500
        if is_silent or not _LOG.isEnabledFor(logging.INFO):
            return
        person = state.get("person")
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "first_byte_ms": round(first_byte * 1000, 1),
            "total_ms": round(elapsed * 1000, 1),
            **({"person": person.id} if person is not None else {}),
        }
        _LOG.info("%s %s %s", method, route, status, extra={"fields": fields})


def _mounted_route(scope: Scope) -> str:
    return "/static" if scope["path"].startswith("/static/") else NO_ROUTE

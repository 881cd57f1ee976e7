"""The id of a request: in its response, in every log line about it, and in the job that it starts.

The id travels to a worker inside the payload of a job, under a key that no kind of job has.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

REQUEST_ID_HEADER = "x-request-id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
_PAYLOAD_KEY = "request_id"

# Of the request or the job that this thread or task works for; empty outside of one.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")
current_job_id: ContextVar[str] = ContextVar("current_job_id", default="")


def choose_request_id(header: str | None) -> str:
    """Return the id that a proxy has given, if it is well formed, otherwise a new one.

    >>> choose_request_id("6f1c0a52e9b04f77")
    '6f1c0a52e9b04f77'
    >>> len(choose_request_id("short")), len(choose_request_id("x" * 65))
    (16, 16)
    """
    if header is not None and _WELL_FORMED.fullmatch(header):
        return header
    return secrets.token_hex(8)


def add_request_id(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a job with the id of the request that stores it."""
    request_id = current_request_id.get()
    return {**payload, _PAYLOAD_KEY: request_id} if request_id else dict(payload)


def take_request_id(payload: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the payload as it was given, and the id of its request.

    >>> take_request_id({"submission": 3, "request_id": "6f1c0a52"})
    ({'submission': 3}, '6f1c0a52')
    """
    request_id = payload.pop(_PAYLOAD_KEY, "")
    return payload, str(request_id)

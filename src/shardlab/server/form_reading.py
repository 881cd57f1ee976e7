"""Reads a form with its CSRF token, also one that a browser without scripts sends."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import FormData, UploadFile

from shardlab.server.request_guard import CSRF_FIELD, CSRF_HEADER

MAX_FIELD_BYTES = 1 << 20


async def _read_form(request: Request) -> FormData:
    """Return the fields of a form. Raises 403 without the right token, 413 for a huge field."""
    form = await request.form(max_files=0, max_fields=50, max_part_size=MAX_FIELD_BYTES)
    token = form.get(CSRF_FIELD)
    # The guard has compared the header already; a form without scripts has the field only.
    if CSRF_HEADER not in request.headers and not (
        isinstance(token, str) and hmac.compare_digest(token, request.state.csrf_token)
    ):
        raise HTTPException(403, "The page is out of date. Reload it, then try again.")
    return form


Form = Annotated[FormData, Depends(_read_form)]


def text_field(form: FormData, name: str, *, max_bytes: int = 1000) -> str:
    """Return a field as text; empty if it is missing. Raises 413 if it is too long."""
    value = form.get(name, "")
    if isinstance(value, UploadFile):
        raise HTTPException(400, f"The field '{name}' must be text.")
    if len(value.encode("utf-8", "surrogatepass")) > max_bytes:
        raise HTTPException(413, f"The field '{name}' is too long: at most {max_bytes:,} bytes.")
    return value

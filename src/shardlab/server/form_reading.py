"""Reads the fields of a form. The guard has compared its CSRF token before."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import FormData, UploadFile

_MAX_FIELD_BYTES = 1 << 20


async def _read_form(request: Request) -> FormData:
    return await request.form(max_files=0, max_fields=50, max_part_size=_MAX_FIELD_BYTES)


Form = Annotated[FormData, Depends(_read_form)]


def text_field(form: FormData, name: str, *, max_bytes: int = 1000) -> str:
    """Return a field as text; empty if it is missing. Raises 413 if it is too long."""
    value = form.get(name, "")
    if isinstance(value, UploadFile):
        raise HTTPException(400, f"The field '{name}' must be text.")
    if len(value.encode("utf-8", "surrogatepass")) > max_bytes:
        raise HTTPException(413, f"The field '{name}' is too long: at most {max_bytes:,} bytes.")
    return value

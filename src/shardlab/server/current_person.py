"""The person behind a request, as a parameter of a route."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request

from shardlab.server.person import Person


def current_person(request: Request) -> Person:
    """Return who sent a request. Raises 401 if nobody is signed in."""
    # The guard sets it: in local mode always, otherwise from a session or an API token.
    person: Person | None = getattr(request.state, "person", None)
    if person is None:
        raise HTTPException(401, "Sign in first.")
    return person


CurrentPerson = Annotated[Person, Depends(current_person)]

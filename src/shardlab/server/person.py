"""The person behind a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request

Role = Literal["learner", "teacher", "admin"]


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who is signed in; in local mode always `LOCAL_PERSON`."""

    id: int
    name: str
    role: Role

    @property
    def is_teacher(self) -> bool:
        return self.role in ("teacher", "admin")

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


LOCAL_PERSON = Person(id=0, name="you", role="admin")


def current_person(request: Request) -> Person:
    """Return who sent a request. Raises 401 if nobody is signed in."""
    # The guard sets it: in local mode always, otherwise from a session or an API token.
    person: Person | None = getattr(request.state, "person", None)
    if person is None:
        raise HTTPException(401, "Sign in first.")
    return person


CurrentPerson = Annotated[Person, Depends(current_person)]

"""The person behind a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

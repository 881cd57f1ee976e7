"""Who may call which route: one table, checked before every route of the application.

A route that is not in the table is refused in server mode, and fails a test. Local mode has one
person on one machine, and no table.

`who` is the role; `resource` says whose the things in the path must be. A resource that is not the
person's answers as one that does not exist, so that nobody learns what exists. Scripts with an API
token can call what has a `scope`: read, or submit; everything else needs a signed-in browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from shardlab.server.identity import Identity
from shardlab.server.operations.monitor_access import check_monitor
from shardlab.server.people.rate_limits import (
    COMMENTS,
    EXPORTS,
    SUBMISSIONS,
    SUBMISSIONS_DAILY,
    SUBMISSIONS_HOURLY,
    UPLOADS,
    RateLimit,
    person_subject,
)
from shardlab.server.person import Person

if TYPE_CHECKING:  # local mode never loads the services of accounts
    from shardlab.server.people.services import People

# `monitor`: who may read the metrics (operations/monitor_access.py); no account is needed.
Who = Literal["everyone", "person", "teacher", "admin", "monitor"]
Scope = Literal["read", "submit", "browser"]
Resource = Literal[
    "class",
    "class teacher",
    "class membership",
    "class submission",
    "class member or self",
    "catalogue owner",
    "catalogue reader",
    "catalogue reader's submission",
    "submission",
    "job",
    "recording",
]


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may call one route."""

    who: Who
    resource: Resource | None = None
    scope: Scope = "browser"
    limits: tuple[RateLimit, ...] = field(default=())  # per person
    stores_files: bool = False  # something large: refused while the disk is nearly full


SUBMISSION_LIMITS = (SUBMISSIONS, SUBMISSIONS_HOURLY, SUBMISSIONS_DAILY)
EVERYONE = Access(who="everyone", scope="read")
EVERYONE_IN_BROWSER = Access(who="everyone")
PERSON = Access(who="person", scope="read")
PERSON_IN_BROWSER = Access(who="person")
SUBMITTER = Access(who="person", scope="submit", limits=SUBMISSION_LIMITS)
RECORDER = replace(SUBMITTER, stores_files=True)
TEACHER = Access(who="teacher")
ADMIN = Access(who="admin")
CLASS_READER = Access(who="person", resource="class", scope="read")
CLASS_TEACHER = Access(who="teacher", resource="class teacher")
CLASS_TEACHER_READS = Access(who="teacher", resource="class teacher", scope="read")
CLASS_SUBMISSION = Access(who="person", resource="class submission", scope="read")
COMMENTER = Access(who="person", resource="class submission", limits=(COMMENTS,))
OWN_JOB = Access(who="person", resource="job", scope="read")
OWN_JOB_CHANGE = Access(who="person", resource="job", scope="submit")
OWN_SUBMISSION = Access(who="person", resource="submission", scope="read")
OWN_SUBMISSION_CHANGE = Access(who="person", resource="submission")
OWN_SUBMISSION_RUN = replace(SUBMITTER, resource="submission")
OWN_SUBMISSION_RECORDING = replace(RECORDER, resource="submission")
OWN_RECORDING = Access(who="person", resource="recording", scope="read")
OWN_CATALOGUE = Access(who="teacher", resource="catalogue owner")
OWN_CATALOGUE_READS = Access(who="teacher", resource="catalogue owner", scope="read")
UPLOADER = Access(who="teacher", scope="submit", limits=(UPLOADS,), stores_files=True)
OWN_CATALOGUE_UPLOAD = replace(UPLOADER, resource="catalogue owner")

_ACCESS: Mapping[str, Access] = {
    "GET /": EVERYONE,
    "GET /api/v1/openapi.json": EVERYONE,
    "GET /health": EVERYONE,
    "GET /healthz": EVERYONE,
    "GET /readyz": EVERYONE,
    "GET /metrics": Access(who="monitor"),
    # Programs and recordings
    "GET /lab": EVERYONE,
    "GET /layout": EVERYONE,
    "POST /api/v1/layouts": PERSON,
    # A plan with rules or of an uploaded model takes seconds: not for passers-by.
    "GET /plan": PERSON,
    "GET /api/v1/planner": PERSON,
    "POST /api/v1/plans": PERSON,
    "POST /api/v1/advice": SUBMITTER,
    "GET /api/v1/gallery": EVERYONE,
    "POST /api/v1/edits": SUBMITTER,
    "GET /api/v1/recordings": PERSON,
    "POST /api/v1/recordings": RECORDER,
    "POST /api/v1/recordings/files": RECORDER,
    "GET /api/v1/recordings/{recording_id}.html": OWN_RECORDING,
    "GET /api/v1/recordings/{recording_id}/perfetto.json": OWN_RECORDING,
    "GET /api/v1/recordings/{recording_id}/source": OWN_RECORDING,
    "GET /api/v1/recordings/{recording_id}": OWN_RECORDING,
    "GET /api/v1/jobs/{job_id}": OWN_JOB,
    "GET /api/v1/jobs/{job_id}/events": OWN_JOB,
    "POST /api/v1/jobs/{job_id}/cancel": OWN_JOB_CHANGE,
    # Practice: lessons are open to everyone; the store of a person has that person's work only.
    "GET /practice": EVERYONE,
    "GET /practice/export.json": Access(who="person", limits=(EXPORTS,)),
    "GET /practice/export.zip": Access(who="person", limits=(EXPORTS,)),
    "GET /practice/{slug}": EVERYONE,
    "GET /practice/{slug}/pictures/{number}.svg": EVERYONE,
    "GET /practice/{slug}/predictions/{number}": EVERYONE,
    "POST /practice/{slug}/run": SUBMITTER,
    "POST /practice/{slug}/submit": SUBMITTER,
    "POST /practice/{slug}/draft": PERSON_IN_BROWSER,
    "POST /practice/{slug}/reset": PERSON_IN_BROWSER,
    "POST /practice/{slug}/restore": PERSON_IN_BROWSER,
    "POST /practice/{slug}/load": PERSON_IN_BROWSER,
    "POST /practice/{slug}/hint": PERSON_IN_BROWSER,
    "POST /practice/{slug}/solution": PERSON_IN_BROWSER,
    "GET /practice/{slug}/submissions/{number}": OWN_SUBMISSION,
    "GET /practice/{slug}/submissions/{number}/source.py": OWN_SUBMISSION,
    "GET /practice/{slug}/submissions/{number}/counterexample.svg": OWN_SUBMISSION,
    "GET /practice/{slug}/submissions/{number}/result": OWN_SUBMISSION,
    "GET /practice/{slug}/submissions/{number}/events": OWN_SUBMISSION,
    "POST /practice/{slug}/submissions/{number}/again": OWN_SUBMISSION_RUN,
    "POST /practice/{slug}/submissions/{number}/cancel": OWN_SUBMISSION_CHANGE,
    "POST /practice/{slug}/submissions/{number}/debug": OWN_SUBMISSION_RECORDING,
    "GET /practice/{slug}/submissions/{number}/debug/{job_id}": OWN_SUBMISSION,
    "POST /practice/{slug}/submissions/{number}/replay": OWN_SUBMISSION_RUN,
    "GET /practice/{slug}/submissions/{number}/replay/{job_id}": OWN_SUBMISSION,
    "GET /api/v1/practice/problems": EVERYONE,
    "GET /api/v1/practice/problems/{slug}": EVERYONE,
    "GET /api/v1/practice/problems/{slug}/draft": PERSON,
    "PUT /api/v1/practice/problems/{slug}/draft": Access(who="person", scope="submit"),
    "DELETE /api/v1/practice/problems/{slug}/draft": Access(who="person", scope="submit"),
    "GET /api/v1/practice/problems/{slug}/hints": PERSON,
    "POST /api/v1/practice/problems/{slug}/hints": Access(who="person", scope="submit"),
    "POST /api/v1/practice/problems/{slug}/solution": Access(who="person", scope="submit"),
    "POST /api/v1/practice/problems/{slug}/submissions": SUBMITTER,
    "GET /api/v1/practice/submissions": PERSON,
    "GET /api/v1/practice/submissions/{number}": OWN_SUBMISSION,
    "POST /api/v1/practice/submissions/{number}/judge": OWN_SUBMISSION_RUN,
    "POST /api/v1/practice/submissions/{number}/replay": OWN_SUBMISSION_RUN,
    "POST /api/v1/practice/submissions/{number}/debug": OWN_SUBMISSION_RECORDING,
    "GET /api/v1/practice/export": Access(who="person", scope="read", limits=(EXPORTS,)),
    # Sign-in and account
    "GET /sign-in": EVERYONE,
    "POST /sign-in": EVERYONE,
    "GET /sign-up": EVERYONE,
    "POST /sign-up": EVERYONE,
    "POST /sign-out": PERSON_IN_BROWSER,
    "GET /account": PERSON_IN_BROWSER,
    "POST /account/password": PERSON_IN_BROWSER,
    "POST /account/sessions/{session_id}/end": PERSON_IN_BROWSER,
    "POST /account/sessions/end-others": PERSON_IN_BROWSER,
    "POST /account/tokens": PERSON_IN_BROWSER,
    "POST /account/tokens/{token_id}/revoke": PERSON_IN_BROWSER,
    "POST /account/passkeys/{passkey_id}/remove": PERSON_IN_BROWSER,
    "GET /account/export.zip": Access(who="person", limits=(EXPORTS,)),
    "GET /account/delete": PERSON_IN_BROWSER,
    "POST /account/delete": PERSON_IN_BROWSER,
    "GET /api/v1/account": PERSON,
    "GET /api/v1/account/limits": PERSON,
    "GET /api/v1/account/export": Access(who="person", scope="read", limits=(EXPORTS,)),
    "POST /api/v1/account/password": PERSON_IN_BROWSER,
    "POST /api/v1/account/delete": PERSON_IN_BROWSER,
    "GET /api/v1/account/sessions": PERSON,
    "DELETE /api/v1/account/sessions/{session_id}": PERSON_IN_BROWSER,
    "GET /api/v1/account/tokens": PERSON,
    "POST /api/v1/account/tokens": PERSON_IN_BROWSER,
    "DELETE /api/v1/account/tokens/{token_id}": PERSON_IN_BROWSER,
    "GET /api/v1/account/passkeys": PERSON,
    "POST /api/v1/account/passkeys": PERSON_IN_BROWSER,
    "POST /api/v1/account/passkeys/challenge": PERSON_IN_BROWSER,
    "DELETE /api/v1/account/passkeys/{passkey_id}": PERSON_IN_BROWSER,
    "POST /api/v1/sign-in/passkey/challenge": EVERYONE_IN_BROWSER,
    "POST /api/v1/sign-in/passkey": EVERYONE_IN_BROWSER,
    # Classes
    "GET /classes": PERSON_IN_BROWSER,
    "POST /classes": TEACHER,
    "GET /classes/{class_id}": CLASS_READER,
    "POST /classes/{class_id}/rename": CLASS_TEACHER,
    "POST /classes/{class_id}/delete": CLASS_TEACHER,
    "POST /classes/{class_id}/join-link": CLASS_TEACHER,
    "GET /classes/{class_id}/members/{person_id}": Access(
        who="person", resource="class member or self", scope="read"
    ),
    "POST /classes/{class_id}/members/{person_id}/remove": CLASS_TEACHER,
    "POST /classes/{class_id}/leave": Access(who="person", resource="class membership"),
    "GET /classes/{class_id}/matrix.csv": CLASS_TEACHER_READS,
    "GET /classes/{class_id}/submissions/{number}": CLASS_SUBMISSION,
    "POST /classes/{class_id}/submissions/{number}/comments": COMMENTER,
    "POST /classes/{class_id}/submissions/{number}/comments/{comment_id}/delete": COMMENTER,
    "GET /join/{token}": EVERYONE,
    "POST /join/{token}": PERSON_IN_BROWSER,
    "GET /api/v1/classes": PERSON,
    "POST /api/v1/classes": TEACHER,
    "GET /api/v1/classes/{class_id}": CLASS_READER,
    "PATCH /api/v1/classes/{class_id}": CLASS_TEACHER,
    "DELETE /api/v1/classes/{class_id}": CLASS_TEACHER,
    "GET /api/v1/classes/{class_id}/members": CLASS_TEACHER_READS,
    "DELETE /api/v1/classes/{class_id}/members/{person_id}": Access(
        who="person", resource="class member or self"
    ),
    "GET /api/v1/classes/{class_id}/join-link": CLASS_TEACHER,
    "POST /api/v1/classes/{class_id}/join-link": CLASS_TEACHER,
    "DELETE /api/v1/classes/{class_id}/join-link": CLASS_TEACHER,
    "POST /api/v1/join/{token}": PERSON_IN_BROWSER,
    "GET /api/v1/classes/{class_id}/submissions/{number}": CLASS_SUBMISSION,
    "POST /api/v1/classes/{class_id}/submissions/{number}/comments": COMMENTER,
    "DELETE /api/v1/classes/{class_id}/submissions/{number}/comments/{comment_id}": COMMENTER,
    "POST /classes/{class_id}/catalogues": CLASS_TEACHER,
    "POST /classes/{class_id}/catalogues/{catalogue_id}/remove": CLASS_TEACHER,
    "GET /api/v1/classes/{class_id}/catalogues": CLASS_READER,
    "PUT /api/v1/classes/{class_id}/catalogues/{catalogue_id}": CLASS_TEACHER,
    "DELETE /api/v1/classes/{class_id}/catalogues/{catalogue_id}": CLASS_TEACHER,
    # Catalogues of teachers; practising with one is below
    "GET /catalogues": TEACHER,
    "POST /catalogues": UPLOADER,
    "GET /catalogues/{catalogue_id}": OWN_CATALOGUE,
    "POST /catalogues/{catalogue_id}/versions": OWN_CATALOGUE_UPLOAD,
    "POST /catalogues/{catalogue_id}/versions/{version_id}/audit": OWN_CATALOGUE_UPLOAD,
    "GET /catalogues/{catalogue_id}/versions/{version_id}/catalogue.zip": OWN_CATALOGUE,
    "POST /catalogues/{catalogue_id}/rename": OWN_CATALOGUE,
    "POST /catalogues/{catalogue_id}/delete": OWN_CATALOGUE,
    "GET /api/v1/catalogues": Access(who="teacher", scope="read"),
    "POST /api/v1/catalogues": UPLOADER,
    "GET /api/v1/catalogues/{catalogue_id}": OWN_CATALOGUE_READS,
    "PATCH /api/v1/catalogues/{catalogue_id}": OWN_CATALOGUE,
    "DELETE /api/v1/catalogues/{catalogue_id}": OWN_CATALOGUE,
    "POST /api/v1/catalogues/{catalogue_id}/versions": OWN_CATALOGUE_UPLOAD,
    "POST /api/v1/catalogues/{catalogue_id}/versions/{version_id}/audit": OWN_CATALOGUE_UPLOAD,
    "GET /api/v1/catalogues/{catalogue_id}/versions/{version_id}/catalogue.zip": (
        OWN_CATALOGUE_READS
    ),
    # Administration
    "GET /admin": ADMIN,
    "POST /admin/people/{person_id}/role": ADMIN,
    "POST /admin/people/{person_id}/reset-password": ADMIN,
    "POST /admin/people/{person_id}/delete": ADMIN,
    "GET /api/v1/admin/people": Access(who="admin", scope="read"),
    "PATCH /api/v1/admin/people/{person_id}": ADMIN,
    "DELETE /api/v1/admin/people/{person_id}": ADMIN,
    "POST /api/v1/admin/people/{person_id}/reset-password": ADMIN,
    "GET /api/v1/admin/queue": Access(who="admin", scope="read"),
}

# Every practice route exists once more for each catalogue of a teacher.
CATALOGUE_PREFIXES = {
    "/practice": "/catalogues/{catalogue_id}/practice",
    "/api/v1/practice": "/api/v1/catalogues/{catalogue_id}/practice",
}


def catalogue_path(path: str) -> str | None:
    """Return the path of a practice route within a teacher's catalogue; None for other routes.

    >>> catalogue_path("/practice/{slug}/run")
    '/catalogues/{catalogue_id}/practice/{slug}/run'
    """
    for prefix, replacement in CATALOGUE_PREFIXES.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            return replacement + path.removeprefix(prefix)
    return None


def _within_catalogue(access: Access) -> Access:
    """Return who may call a practice route in a teacher's catalogue: only those who may see it."""
    resource: Resource = "catalogue reader"
    if access.resource == "submission":
        resource = "catalogue reader's submission"
    assert access.resource in (None, "submission")
    return replace(access, who="person", resource=resource)


def _catalogue_access() -> dict[str, Access]:
    rows = {}
    for key, access in _ACCESS.items():
        method, _, path = key.partition(" ")
        if (twin := catalogue_path(path)) is not None:
            rows[f"{method} {twin}"] = _within_catalogue(access)
    return rows


ACCESS: Mapping[str, Access] = {**_ACCESS, **_catalogue_access()}

# What a person whose password an admin has set can do before choosing their own.
_WITHOUT_OWN_PASSWORD = frozenset(
    {
        *("GET /account", "POST /account/password", "POST /sign-out"),
        *("GET /health", "GET /sign-in", "POST /sign-in"),
    }
)


class OwnPasswordRequired(Exception):
    """An admin has set the person's password; they must choose their own first."""


class SignInRequired(Exception):
    """Nobody is signed in.

    `location` is where the browser goes; empty for the API.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


def route_key(request: Request) -> str:
    """Return the row of the table that a request belongs to."""
    method = "GET" if request.method == "HEAD" else request.method
    return f"{method} {request.scope['route'].path_format}"


async def check_access(request: Request) -> None:
    """Raise unless the person may call the route. Every route depends on this."""
    key = route_key(request)
    request.state.route = request.scope["route"].path_format  # for the log and the metrics
    access = ACCESS.get(key)
    if access is not None and access.who == "monitor":
        check_monitor(request)
        return
    if request.app.state.settings.is_local:
        return
    if access is None:
        raise HTTPException(403)
    identity: Identity = request.state.identity
    if identity.is_script:
        _check_script(identity, access)
    if identity.must_change_password and key not in _WITHOUT_OWN_PASSWORD:
        raise OwnPasswordRequired
    if access.who == "everyone":
        return
    person = identity.person
    if person is None:
        raise SignInRequired(_sign_in_location(request))
    if not _has_role(person, access.who):
        raise HTTPException(403)
    people: People = request.app.state.people
    if access.resource is not None:
        check = RESOURCE_CHECKS[access.resource]
        if not await run_in_threadpool(check, people, request, person):
            raise HTTPException(404)
    await _check_quotas(request, access, person)


async def _check_quotas(request: Request, access: Access, person: Person) -> None:
    """Raise if there is no room for what the route stores, or the person has used up a limit."""
    if access.stores_files:
        await run_in_threadpool(request.app.state.storage.check_room)
    people: People = request.app.state.people
    for limit in access.limits:
        await run_in_threadpool(people.limits.count, limit, person_subject(person.id))


def _check_script(identity: Identity, access: Access) -> None:
    """Raise unless the token exists and has the scope."""
    if identity.person is None:
        # Also where everyone may read: a wrong token must not look like a right one.
        raise SignInRequired("")
    if access.scope == "browser":
        raise HTTPException(403, "A token cannot do this. Sign in with a browser.")
    if access.scope == "submit" and not identity.can_submit:
        raise HTTPException(403, "This token can read, but not submit.")


def _has_role(person: Person, who: Who) -> bool:
    return {"person": True, "teacher": person.is_teacher, "admin": person.is_admin}[who]


def _sign_in_location(request: Request) -> str:
    if request.url.path.startswith("/api/"):
        return ""
    target = request.url.path if request.method == "GET" else "/"
    if request.method == "GET" and request.url.query:
        target += f"?{request.url.query}"
    return f"/sign-in?next={quote(target, safe='')}"


# -------------------------------------------------------------------------------- resources

ResourceCheck = Callable[["People", Request, Person], bool]


def _number(request: Request, name: str) -> int:
    """Return a number of the path; one that no row can have for anything else."""
    text = str(request.path_params.get(name, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def _is_class_teacher(people: People, request: Request, person: Person) -> bool:
    teacher = people.classes.teacher_of(_number(request, "class_id"))
    # Who was a teacher and is one no longer still has the classes, and must not look into them.
    is_own = person.is_teacher and teacher == person.id
    return teacher is not None and (person.is_admin or is_own)


def _is_member(people: People, request: Request, person: Person) -> bool:
    return people.classes.is_member(_number(request, "class_id"), person.id)


def _is_in_class(people: People, request: Request, person: Person) -> bool:
    is_teacher = _is_class_teacher(people, request, person)
    return is_teacher or _is_member(people, request, person)


def _sees_class_submission(people: People, request: Request, person: Person) -> bool:
    class_id, number = _number(request, "class_id"), _number(request, "number")
    owner = people.classes.submission_owner(class_id, number)
    return owner is not None and (owner == person.id or _is_class_teacher(people, request, person))


def _is_member_or_teacher(people: People, request: Request, person: Person) -> bool:
    is_self = _number(request, "person_id") == person.id
    return _is_class_teacher(people, request, person) or (
        is_self and _is_member(people, request, person)
    )


def _owns_submission(people: People, request: Request, person: Person) -> bool:
    return people.owner_of_submission(_number(request, "number")) == person.id


def _owns_catalogue(people: People, request: Request, person: Person) -> bool:
    owner = people.catalogues.owner_of(_number(request, "catalogue_id"))
    return owner is not None and (person.is_admin or owner == person.id)


def _reads_catalogue(people: People, request: Request, person: Person) -> bool:
    return people.catalogues.is_reader(_number(request, "catalogue_id"), person)


def _owns_catalogue_submission(people: People, request: Request, person: Person) -> bool:
    # Its store has the submissions of this catalogue only: another one's number is unknown there.
    return _reads_catalogue(people, request, person) and _owns_submission(people, request, person)


def _owns_job(people: People, request: Request, person: Person) -> bool:
    return people.owner_of_job(str(request.path_params.get("job_id", ""))) == person.id


def _owns_recording(people: People, request: Request, person: Person) -> bool:
    return people.owner_of_recording(str(request.path_params.get("recording_id", ""))) == person.id


RESOURCE_CHECKS: Mapping[Resource, ResourceCheck] = {
    "class": _is_in_class,
    "class teacher": _is_class_teacher,
    "class membership": _is_member,
    "class submission": _sees_class_submission,
    "class member or self": _is_member_or_teacher,
    "catalogue owner": _owns_catalogue,
    "catalogue reader": _reads_catalogue,
    "catalogue reader's submission": _owns_catalogue_submission,
    "submission": _owns_submission,
    "job": _owns_job,
    "recording": _owns_recording,
}

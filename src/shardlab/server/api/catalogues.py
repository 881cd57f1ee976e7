"""Catalogues of teachers: upload, audit, versions, download; and the classes that see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.api_models import ERROR_RESPONSES, JobView
from shardlab.server.api.job_routes import job_view
from shardlab.server.api.people_models import NewClass, RowId
from shardlab.server.catalogue_uploads import (
    find_audit,
    repeat_audit,
    upload_catalogue,
    upload_version,
)
from shardlab.server.jobs.job_service import JobService
from shardlab.server.pages.catalogues import zip_response
from shardlab.server.people.catalogues import CatalogueSummary, CatalogueVersion
from shardlab.server.people.classes import MAX_TITLE
from shardlab.server.practice.workbooks import jobs_of

router = APIRouter(prefix="/api/v1", tags=["catalogues"], responses=ERROR_RESPONSES)

CatalogueTitle = Annotated[str, Query(min_length=1, max_length=MAX_TITLE)]
_ZIP_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}


class FaultBody(BaseModel):
    """A fault that the audit found."""

    problem: str
    rule: str = Field(description="As docs/write-a-problem.md lists them.")
    message: str
    file: str
    line: int
    details: list[str]


class VersionBody(BaseModel):
    """One upload of a catalogue."""

    id: int
    catalogue: int
    number: int
    digest: str = Field(description="SHA-256 of the names and contents of its files.")
    created: float
    n_problems: int
    state: Literal["waiting", "passed", "failed"]
    faults: list[FaultBody]
    job: JobView | None = Field(default=None, description="Its audit.")


class CatalogueBody(BaseModel):
    """A catalogue with its versions, newest first."""

    id: int
    title: str
    teacher: str
    is_mine: bool
    created: float
    versions: list[VersionBody]


class AssignedCatalogue(BaseModel):
    """A catalogue that the members of a class can see."""

    id: int
    title: str
    version: int
    problems: list[str]


def _version_body(jobs: JobService, version: CatalogueVersion) -> VersionBody:
    job = find_audit(jobs, version)
    faults = [FaultBody(**fault.to_json()) for fault in version.faults]
    fields = {**vars(version), "faults": faults}
    return VersionBody(**fields, job=None if job is None else job_view(job, jobs))


def _catalogue_body(jobs: JobService, summary: CatalogueSummary) -> CatalogueBody:
    versions = [_version_body(jobs, version) for version in summary.versions]
    return CatalogueBody(**{**vars(summary), "versions": versions})


@router.get("/catalogues")
def list_catalogues(
    request: Request, person: SignedIn, people: PeopleServices
) -> list[CatalogueBody]:
    """Return the catalogues that the person has uploaded."""
    jobs = jobs_of(request)
    return [_catalogue_body(jobs, row) for row in people.catalogues.list_own(person)]


@router.post("/catalogues", status_code=201, openapi_extra=_ZIP_BODY)
async def create_catalogue(
    request: Request, person: SignedIn, people: PeopleServices, title: CatalogueTitle
) -> VersionBody:
    """Upload a catalogue as a zip file; its audit is queued."""
    data, jobs = await request.body(), jobs_of(request)
    version = await run_in_threadpool(upload_catalogue, people, jobs, person, title, data)
    return await run_in_threadpool(_version_body, jobs, version)


@router.get("/catalogues/{catalogue_id}")
def read_catalogue(
    catalogue_id: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> CatalogueBody:
    """Return a catalogue with its versions and what their audits found."""
    return _catalogue_body(jobs_of(request), people.catalogues.get(catalogue_id, person))


@router.patch("/catalogues/{catalogue_id}", status_code=204)
def rename_catalogue(catalogue_id: RowId, body: NewClass, people: PeopleServices) -> Response:
    """Change the title."""
    people.catalogues.rename(catalogue_id, body.title)
    return Response(status_code=204)


@router.delete("/catalogues/{catalogue_id}", status_code=204)
def delete_catalogue(catalogue_id: RowId, people: PeopleServices) -> Response:
    """Delete a catalogue with all versions; submissions to it stay with their people."""
    people.catalogues.delete(catalogue_id)
    return Response(status_code=204)


@router.post("/catalogues/{catalogue_id}/versions", status_code=201, openapi_extra=_ZIP_BODY)
async def add_version(catalogue_id: RowId, request: Request, people: PeopleServices) -> VersionBody:
    """Upload a new version as a zip file; classes see it as soon as its audit passes."""
    data, jobs = await request.body(), jobs_of(request)
    version = await run_in_threadpool(upload_version, people, jobs, catalogue_id, data)
    return await run_in_threadpool(_version_body, jobs, version)


@router.post("/catalogues/{catalogue_id}/versions/{version_id}/audit", status_code=202)
def audit_version(
    catalogue_id: RowId, version_id: RowId, request: Request, people: PeopleServices
) -> VersionBody:
    """Audit a version again that failed, or whose audit was interrupted."""
    jobs = jobs_of(request)
    return _version_body(jobs, repeat_audit(people, jobs, catalogue_id, version_id))


@router.get(
    "/catalogues/{catalogue_id}/versions/{version_id}/catalogue.zip",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}},
)
def download_version(catalogue_id: RowId, version_id: RowId, people: PeopleServices) -> Response:
    """Return the files of a version as a zip file."""
    return zip_response(people, catalogue_id, version_id)


# ------------------------------------------------------------------------------------- classes


@router.get("/classes/{class_id}/catalogues")
def list_class_catalogues(class_id: RowId, people: PeopleServices) -> list[AssignedCatalogue]:
    """Return the catalogues that the members of a class can see, beside the server's own."""
    return [
        AssignedCatalogue(
            id=opened.id,
            title=opened.title,
            version=opened.version,
            problems=list(opened.catalogue.slugs),
        )
        for opened in people.catalogues.list_assigned(class_id)
    ]


@router.put("/classes/{class_id}/catalogues/{catalogue_id}", status_code=204)
def assign_catalogue(class_id: RowId, catalogue_id: RowId, people: PeopleServices) -> Response:
    """Let the members of a class see a catalogue of its teacher that passed its audit."""
    people.catalogues.assign(class_id, catalogue_id)
    return Response(status_code=204)


@router.delete("/classes/{class_id}/catalogues/{catalogue_id}", status_code=204)
def unassign_catalogue(class_id: RowId, catalogue_id: RowId, people: PeopleServices) -> Response:
    """Hide a catalogue from a class; submissions stay."""
    people.catalogues.unassign(class_id, catalogue_id)
    return Response(status_code=204)

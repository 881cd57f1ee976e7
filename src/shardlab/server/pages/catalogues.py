"""A teacher's catalogues: the list with the upload, and one catalogue with its versions."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import RedirectResponse, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.people_models import RowId
from shardlab.server.catalogue_archive import MAX_ARCHIVE_BYTES, MAX_PROBLEMS
from shardlab.server.catalogue_uploads import (
    find_audit,
    repeat_audit,
    upload_catalogue,
    upload_version,
)
from shardlab.server.form_reading import text_field
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import Job
from shardlab.server.page_rendering import render_page
from shardlab.server.pages.sign_in import TextField
from shardlab.server.people.catalogues import (
    CatalogueSummary,
    CatalogueVersion,
)
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.services import People
from shardlab.server.person import Person
from shardlab.server.practice.workbooks import jobs_of

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class CataloguesPage:
    """The context of catalogues.html."""

    catalogues: tuple[CatalogueSummary, ...]
    max_catalogues: int
    message: str = ""
    draft_title: str = ""  # of an upload that was refused
    title: str = "Catalogues"
    max_problems: int = MAX_PROBLEMS
    max_megabytes: int = MAX_ARCHIVE_BYTES >> 20


@dataclass(frozen=True, kw_only=True)
class VersionView:
    """A version, and how far its audit is."""

    version: CatalogueVersion
    job: Job | None

    @property
    def is_active(self) -> bool:
        return self.job is not None and not self.job.has_ended

    @property
    def status(self) -> str:
        """Return in words how far it is."""
        version, job = self.version, self.job
        if version.state == "passed":
            return "passed"
        if version.state == "failed":
            n_faults = len(version.faults)
            return f"{n_faults} fault{'s' if n_faults != 1 else ''}"
        if job is None or job.has_ended:
            return "not audited"
        if job.state == "queued":
            return "waits for a worker"
        progress = job.progress or {}
        done, total = progress.get("n_audited", 0), progress.get("n_problems", version.n_problems)
        return f"audit runs: problem {done + 1} of {total}"


@dataclass(frozen=True, kw_only=True)
class CataloguePage:
    """The context of catalogue.html."""

    summary: CatalogueSummary
    versions: tuple[VersionView, ...]
    message: str = ""

    @property
    def title(self) -> str:
        return self.summary.title

    @property
    def is_active(self) -> bool:
        return any(view.is_active for view in self.versions)


async def _read_upload(request: Request) -> tuple[str, bytes]:
    """Return the title in a form, and the file; empty if there is none."""
    async with request.form(max_files=1, max_fields=10) as form:
        file = form.get("file")
        data = await file.read(MAX_ARCHIVE_BYTES + 1) if isinstance(file, UploadFile) else b""
        return text_field(form, "title"), data


def _jobs(request: Request) -> JobService:
    return jobs_of(request)


@router.get("/catalogues")
def show_catalogues(request: Request, person: SignedIn, people: PeopleServices) -> Response:
    page = CataloguesPage(
        catalogues=people.catalogues.list_own(person),
        max_catalogues=people.catalogues.max_catalogues,
    )
    return render_page(request, "catalogues.html", page)


@router.post("/catalogues")
async def create_catalogue(request: Request, person: SignedIn, people: PeopleServices) -> Response:
    title, data = await _read_upload(request)

    def store() -> Response:
        try:
            if not data:
                raise Refusal("Choose the zip file of a catalogue.", field="file")
            version = upload_catalogue(people, _jobs(request), person, title, data)
        except Refusal as error:
            page = CataloguesPage(
                catalogues=people.catalogues.list_own(person),
                max_catalogues=people.catalogues.max_catalogues,
                message=error.message,
                draft_title=title,
            )
            return render_page(request, "catalogues.html", page, status=422)
        return RedirectResponse(f"/catalogues/{version.catalogue}", 303)

    return await run_in_threadpool(store)


def _catalogue_page(
    request: Request, people: People, person: Person, catalogue_id: int, message: str = ""
) -> CataloguePage:
    summary = people.catalogues.get(catalogue_id, person)
    jobs = _jobs(request)
    return CataloguePage(
        summary=summary,
        versions=tuple(
            VersionView(version=version, job=find_audit(jobs, version))
            for version in summary.versions
        ),
        message=message,
    )


@router.get("/catalogues/{catalogue_id}")
def show_catalogue(
    catalogue_id: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    page = _catalogue_page(request, people, person, catalogue_id)
    return render_page(request, "catalogue.html", page)


@router.post("/catalogues/{catalogue_id}/versions")
async def add_version(
    catalogue_id: RowId, request: Request, person: SignedIn, people: PeopleServices
) -> Response:
    _, data = await _read_upload(request)

    def store() -> Response:
        try:
            if not data:
                raise Refusal("Choose the zip file of a catalogue.", field="file")
            upload_version(people, _jobs(request), catalogue_id, data)
        except Refusal as error:
            page = _catalogue_page(request, people, person, catalogue_id, error.message)
            return render_page(request, "catalogue.html", page, status=422)
        return RedirectResponse(f"/catalogues/{catalogue_id}", 303)

    return await run_in_threadpool(store)


@router.post("/catalogues/{catalogue_id}/versions/{version_id}/audit")
def audit_again(
    catalogue_id: RowId, version_id: RowId, request: Request, people: PeopleServices
) -> Response:
    repeat_audit(people, _jobs(request), catalogue_id, version_id)
    return RedirectResponse(f"/catalogues/{catalogue_id}", 303)


@router.get("/catalogues/{catalogue_id}/versions/{version_id}/catalogue.zip")
def download_version(catalogue_id: RowId, version_id: RowId, people: PeopleServices) -> Response:
    return zip_response(people, catalogue_id, version_id)


def zip_response(people: People, catalogue_id: int, version_id: int) -> Response:
    """Return the zip file of a version as a download."""
    name = f"catalogue-{catalogue_id}-{version_id}.zip"
    return Response(
        people.catalogues.load_zip(catalogue_id, version_id),
        media_type="application/zip",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


@router.post("/catalogues/{catalogue_id}/rename")
def rename_catalogue(
    catalogue_id: RowId,
    request: Request,
    person: SignedIn,
    people: PeopleServices,
    title: TextField = "",
) -> Response:
    try:
        people.catalogues.rename(catalogue_id, title)
    except Refusal as error:
        page = _catalogue_page(request, people, person, catalogue_id, error.message)
        return render_page(request, "catalogue.html", page, status=422)
    return RedirectResponse(f"/catalogues/{catalogue_id}", 303)


@router.post("/catalogues/{catalogue_id}/delete")
def delete_catalogue(catalogue_id: RowId, people: PeopleServices) -> Response:
    people.catalogues.delete(catalogue_id)
    return RedirectResponse("/catalogues", 303)

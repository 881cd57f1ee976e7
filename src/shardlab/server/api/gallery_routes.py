"""The gallery of programs, and the break-it edits of a program."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter
from starlette.requests import Request

from shardlab.recording.example_gallery import gallery_programs
from shardlab.server.api.api_models import ERROR_RESPONSES, EditsRequest, GalleryItem, JobView
from shardlab.server.api.job_routes import submit_job
from shardlab.server.api.recording_routes import check_program_options
from shardlab.server.current_person import CurrentPerson

router = APIRouter(prefix="/api/v1", tags=["programs"], responses=ERROR_RESPONSES)


@router.get("/gallery")
def list_gallery() -> list[GalleryItem]:
    """Return the programs to begin with: patterns, and one for each hazard."""
    return list(_gallery_items())


@router.post("/edits", status_code=202)
def list_edits(request: Request, person: CurrentPerson, body: EditsRequest) -> JobView:
    """List the edits that break a program: remove a psum, swap an axis, skip a branch."""
    check_program_options(body.mesh, None)
    payload = {"source": body.source, "mesh": body.mesh.strip() or None}
    return submit_job(request, person, "edits", payload)


@cache
def _gallery_items() -> tuple[GalleryItem, ...]:
    return tuple(
        GalleryItem(
            slug=program.slug,
            title=program.title,
            summary=program.summary,
            kind=program.kind,
            source=program.source,
            mesh=program.mesh,
            target=program.target or None,
        )
        for program in gallery_programs()
    )

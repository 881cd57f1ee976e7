"""The program lab: an editor, a mesh, and the debugger of the recorded run."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse

from shardlab.hardware.chips import hardware_names
from shardlab.recording.example_gallery import GalleryProgram, gallery_programs
from shardlab.server.page_rendering import render_page


@dataclass(frozen=True, kw_only=True)
class LabPage:
    """The context of lab.html."""

    gallery: tuple[GalleryProgram, ...]
    example: GalleryProgram | None  # the program in the editor at first
    recording_id: str  # opened at first; empty if none
    hardware_names: tuple[str, ...]
    title: str = "Program lab"


def show_lab(request: Request) -> HTMLResponse:
    """Return the page at /lab."""
    query = request.query_params
    programs = gallery_programs()
    slug = query.get("example", "")
    chosen = next((program for program in programs if program.slug == slug), None)
    page = LabPage(
        gallery=programs,
        example=chosen or (programs[0] if programs else None),
        recording_id=query.get("recording", "")[:32],
        hardware_names=hardware_names(),
    )
    return render_page(request, "lab.html", page)

"""The program lab: an editor, a mesh, and the debugger of the recorded run."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from shardlab.hardware.chips import hardware_names
from shardlab.server.api.api_models import GalleryItem
from shardlab.server.gallery_list import gallery_items
from shardlab.server.page_rendering import render_page

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class LabPage:
    """The context of lab.html."""

    gallery: tuple[GalleryItem, ...]
    example: GalleryItem | None  # the program in the editor at first
    recording_id: str  # opened at first; empty if none
    hardware_names: tuple[str, ...]
    title: str = "Program lab"


@router.get("/lab")
def show_lab(request: Request, example: str = "", recording: str = "") -> HTMLResponse:
    items = gallery_items()
    chosen = next((item for item in items if item.slug == example), items[0] if items else None)
    page = LabPage(
        gallery=items,
        example=chosen,
        recording_id=recording[:32],
        hardware_names=hardware_names(),
    )
    return render_page(request, "lab.html", page)

"""The home page: what shardlab does, and where to begin."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse

from shardlab.catalogue.tracks import Catalogue
from shardlab.server.page_rendering import render_page


@dataclass(frozen=True, kw_only=True)
class HomePage:
    """The context of home.html."""

    n_problems: int
    first_problem: str
    title: str = "shardlab"


async def show_home(request: Request) -> HTMLResponse:
    """Return the page at /."""
    catalogue: Catalogue = request.app.state.catalogue
    slugs = [slug for track in catalogue.tracks for slug in track.slugs]
    page = HomePage(n_problems=len(slugs), first_problem=slugs[0] if slugs else "")
    return render_page(request, "home.html", page)

"""Renders a page: a template, its context dataclass, and what every page shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request

from shardlab import __version__
from shardlab.server.person import Person

STATIC_FOLDER = Path(__file__).parent / "static"


@dataclass(frozen=True)
class NavigationLink:
    """One entry of the main menu."""

    path: str
    label: str


NAVIGATION = (
    NavigationLink("/lab", "Program lab"),
    NavigationLink("/layout", "Layout"),
    NavigationLink("/plan", "Planner"),
    NavigationLink("/practice", "Practice"),
)


@dataclass(frozen=True, kw_only=True)
class Site:
    """What the frame of every page needs."""

    path: str
    person: Person | None
    csrf_token: str
    is_local: bool
    version: str = __version__

    @property
    def navigation(self) -> tuple[NavigationLink, ...]:
        """Return the main menu of this person."""
        links: tuple[NavigationLink, ...] = NAVIGATION
        if not self.is_local and self.person is not None:
            links += (NavigationLink("/classes", "Classes"),)
            links += (NavigationLink("/admin", "Admin"),) if self.person.is_admin else ()
        return links

    def static(self, name: str) -> str:
        """Return the URL of a static file; it changes with the content, so caches never lie."""
        return f"/static/{name}?v={file_digest(name)}"


@cache
def file_digest(name: str) -> str:
    """Return a short digest of a static file."""
    import hashlib

    path = STATIC_FOLDER / name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "missing"


@cache
def template_environment() -> Environment:
    """Return the templates; a name that a context does not have is an error, not an empty text."""
    environment = Environment(
        loader=PackageLoader("shardlab.server"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = _json_text
    environment.filters["utc_time"] = _utc_time
    return environment


def render_page(request: Request, template: str, page: Any, *, status: int = 200) -> HTMLResponse:
    """Return the response of one page; the template reads `page` and `site`."""
    return HTMLResponse(render_text(request, template, page), status_code=status)


def render_text(request: Request, template: str, page: Any) -> str:
    """Return the HTML of a page or of a part of one."""
    site = Site(
        path=request.url.path,
        person=getattr(request.state, "person", None),
        csrf_token=request.state.csrf_token,
        is_local=request.app.state.settings.is_local,
    )
    return template_environment().get_template(template).render(page=page, site=site)


def _utc_time(seconds: float | None) -> str:
    """Return a time to read; a page without scripts does not know the reader's time zone."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))

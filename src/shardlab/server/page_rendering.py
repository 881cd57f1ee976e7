"""Renders a page: a template, its context dataclass, and what every page shows."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from shardlab import __version__
from shardlab._text.units import bytes_text, seconds_text
from shardlab.server.person import Person

STATIC_FOLDER = Path(__file__).parent / "static"
# Stands for the nonce of the response in templates, so that a part can be cached and used in many
# responses. It is random too: a text that contains it would be an element of htmx.
_NONCE_PLACEHOLDER = f"nonce {secrets.token_urlsafe(16)}"


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
    practice: str = "/practice"  # the path of the catalogue that the page is about
    version: str = __version__

    @property
    def navigation(self) -> tuple[NavigationLink, ...]:
        """Return the main menu of this person."""
        links: tuple[NavigationLink, ...] = NAVIGATION
        if not self.is_local and self.person is not None:
            links += (NavigationLink("/classes", "Classes"),)
            if self.person.is_teacher:
                links += (NavigationLink("/catalogues", "Catalogues"),)
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
    environment.globals["hx_nonce"] = _NONCE_PLACEHOLDER
    environment.filters["json"] = _json_text
    environment.filters["utc_time"] = _utc_time
    environment.filters["time_element"] = _time_element
    environment.filters["bytes"] = bytes_text
    environment.filters["duration"] = seconds_text
    return environment


def render_page(request: Request, template: str, page: Any, *, status: int = 200) -> HTMLResponse:
    """Return the response of one page; the template reads `page` and `site`."""
    return HTMLResponse(render_text(request, template, page), status_code=status)


def render_text(request: Request, template: str, page: Any) -> str:
    """Return the HTML of a page or of a part of one."""
    site = Site(
        # The menu shows a teacher's problems under Practice.
        path=request.url.path.replace(practice_path(request), "/practice", 1),
        person=getattr(request.state, "person", None),
        csrf_token=request.state.csrf_token,
        is_local=request.app.state.settings.is_local,
        practice=practice_path(request),
    )
    html = template_environment().get_template(template).render(page=page, site=site)
    return html.replace(_NONCE_PLACEHOLDER, request.state.csp_nonce)


def render_part(template: str, page: Any, practice: str = "") -> Markup:
    """Return the HTML of a part that shows nothing of the person: it can be cached.

    `practice` is where the practice pages of a catalogue are, and belongs to the key of the cache.
    """
    # A template that uses more of `site` fails here instead of caching a person's name.
    site = {"practice": practice} if practice else {}
    return Markup(template_environment().get_template(template).render(page=page, site=site))


def send_part(request: Request, html: Markup) -> HTMLResponse:
    """Return the response of a cached part alone, with the nonce of this response."""
    return HTMLResponse(str(html).replace(_NONCE_PLACEHOLDER, request.state.csp_nonce))


def practice_path(request: Request) -> str:
    """Return where the practice pages of a request's catalogue are: the server's, or a teacher's.

    >>> practice_path(Request({"type": "http", "path_params": {"catalogue_id": "3"}}))
    '/catalogues/3/practice'
    """
    catalogue_id = request.path_params.get("catalogue_id")
    return "/practice" if catalogue_id is None else f"/catalogues/{int(catalogue_id)}/practice"


def _utc_time(seconds: float | None) -> str:
    """Return a time to read; a page without scripts does not know the reader's time zone."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _time_element(seconds: float | None) -> Markup:
    """Return a time as an element; a script shows it in the reader's time zone."""
    if seconds is None:
        return Markup("never")
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time datetime="{}">{}</time>').format(moment, _utc_time(seconds))


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
